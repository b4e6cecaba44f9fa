"""`DocumentStore` and its parts: settings, location, building, removal, eviction, integrity, inspection and repair.

Questions and answers do not belong here. This package imports every package above it: `errors`, `events`, `display`,
`packets`, `engine`, `corpus` and `retrieval`.
"""
