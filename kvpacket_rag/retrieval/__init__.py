"""Embedders, the vector index, text matching, filters, and the search that uses them.

Search reads chunk rows through a protocol and does not depend on a database. This part imports `errors`,
`display.progress`, `engine.catalogue` and `corpus`.
"""
