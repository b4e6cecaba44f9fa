"""First tables.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables of version 0.1."""
    op.create_table(
        "facts",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", sa.JSON, nullable=False),
    )
    op.create_table(
        "documents",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(1024), nullable=False, unique=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False, index=True),
        sa.Column("content", sa.String(64), nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("characters", sa.Integer, nullable=False),
        sa.Column("added", sa.Float, nullable=False),
    )
    op.create_table(
        "chunks",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column(
            "document_id", sa.Integer, sa.ForeignKey("documents.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("start", sa.Integer, nullable=False),
        sa.Column("stop", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("token_ids", sa.LargeBinary, nullable=False),
        sa.Column("content", sa.String(64), nullable=False, index=True),
        sa.Column("vector", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("document_id", "ordinal"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "fingerprints",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("fields", sa.JSON, nullable=False),
        sa.Column("anchor", sa.String(32), nullable=False),
    )
    op.create_table(
        "packets",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("content", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(64), sa.ForeignKey("fingerprints.digest"), nullable=False),
        sa.Column("file", sa.String(256), nullable=False, unique=True),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_index("packets_by_content", "packets", ["content", "fingerprint"], unique=True)
