"""Embedders, the vector index, text matching, filters and search over them.

Search reads chunk rows through a protocol and knows no database. It imports `errors`, `display.progress`, `engine.catalogue` and `corpus`.
"""
