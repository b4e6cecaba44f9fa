"""Ways to make a context, compared with each other: full prefill, packets of several kinds, and methods that recompute tokens.

A method never tokenises, times or scores. It imports `errors`, `packets`, `engine` and `training.samples`.
"""
