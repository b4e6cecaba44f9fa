"""What runs a model: the `Engine` protocol, assembly of contexts, prompts as token ids, and one folder for each library.

All code above uses a model through `protocol.Engine` alone. It imports `errors`, `display.progress` and `packets`, never documents or stores.
"""
