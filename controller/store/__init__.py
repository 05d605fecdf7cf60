"""All SQL of the controller: one module an aggregate, every statement named and described. Holds no policy."""

from controller.store.store import PostgresStore

__all__ = ["PostgresStore"]
