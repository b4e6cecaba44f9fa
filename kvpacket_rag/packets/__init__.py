"""What a packet is, and everything it is named and stored by: fingerprint, anchor, adapter, number formats, rotation, bytes.

Pure values and functions on tensors. Nothing here knows a model, a file or a database. It imports only `errors`.
"""
