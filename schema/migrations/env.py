"""What Alembic runs: the migrations on the connection that `schema.migrations.run` opened, in one transaction."""

from __future__ import annotations

from alembic import context

from schema.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
