"""Methods of building a context: full prefill, several kinds of packets, and methods that recompute tokens.

A method never tokenises, times or scores. This package imports `errors`, `packets`, `engine` and `training.samples`.
"""
