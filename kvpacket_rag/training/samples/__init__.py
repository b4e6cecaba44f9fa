"""Questions with their passages: from published data sets, from generators, and written by the model about a store.

This package computes no gradients and no scores. It imports `errors`, `engine`, `corpus`, `store` and `answering`.
"""
