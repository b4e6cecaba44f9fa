"""The engine that runs Hugging Face transformers models, with their cache layouts and attention.

Nothing else touches a torch module of a model; only `engine.loading`, training and measurements import from here. It imports `errors`, `packets` and the modules of `engine` that know no library.
"""
