"""Alembic migrations of the control database; `run` applies them without an alembic.ini."""
