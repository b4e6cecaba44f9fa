"""The database of a store: transactions, tables, migrations, and the backends for SQLite and PostgreSQL.

This package handles rows only, not packets, vectors or documents as objects. It imports only `errors`.
"""
