"""Bundles: a knowledge base, or what changed in it, as one file that is exported, signed, imported or used in place.

The bytes of the file are known in `format` only. It imports the parts of `store` below `document_store`.
"""
