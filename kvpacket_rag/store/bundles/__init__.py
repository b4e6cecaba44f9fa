"""Bundles: a knowledge base, or the changes in it, as one file that can be exported, signed, imported or used in place.

Only `format` knows the bytes of the file. This package imports the parts of `store` below `document_store`.
"""
