"""The database of a store: transactions, tables, migrations, and the two kinds of server.

No packets, vectors or documents as objects, only rows. It imports only `errors`.
"""
