"""Entry point of Alembic. It runs the migrations on the connection that `database.Database` passes."""

from alembic import context

from kvpacket_rag.store.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
