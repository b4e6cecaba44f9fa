"""Documents and chunks: reading files, splitting texts, and what belongs together when files change.

Texts only: no vectors, packets or rows. It imports `errors`, `packets` and `engine` (for token counts).
"""
