"""The engine that runs Hugging Face transformers models, with their cache layouts and attention.

No other code touches a torch module of a model. Only `engine.loading`, training and measurements import from this
folder. It imports `errors`, `packets` and the modules of `engine` that do not depend on a library.
"""
