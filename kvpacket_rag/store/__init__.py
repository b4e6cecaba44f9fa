"""`DocumentStore` and what it is made of: settings, location, building, removal, eviction, integrity, inspection and repair.

Questions and answers do not belong here. It imports every part above it: `errors`, `events`, `display`, `packets`, `engine`, `corpus` and `retrieval`.
"""
