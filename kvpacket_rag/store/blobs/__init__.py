"""Where the bytes of packets are stored: a folder, or an object store with a local copy of what is used.

Bytes by name only; what they mean is not known here. It imports `errors` and `engine.settings`.
"""
