"""Where the bytes of packets are stored: a folder, or an object store with a local copy of what is used.

This package stores bytes by name and does not know what they mean. It imports `errors` and `engine.settings`.
"""
