"""Documents and chunks: reading files, splitting texts, and finding the documents affected when files change.

This part handles texts only, not vectors, packets or database rows. It imports `errors`, `packets` and `engine` (for
token counts).
"""
