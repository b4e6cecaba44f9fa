"""Move the adapter of a store from a file into the database.

Revision ID: 0003
"""

import base64
from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Copy the file into the database. The file stays where it is, but is no longer read."""
    connection = op.get_bind()
    database = connection.engine.url.database
    if connection.dialect.name != "sqlite" or not database:
        return
    file = Path(database).parent / "adapter.safetensors"
    if file.exists():
        facts = sa.table("facts", sa.column("key", sa.String), sa.column("value", sa.JSON))
        op.execute(facts.insert().values(key="adapter", value=base64.b64encode(file.read_bytes()).decode()))
