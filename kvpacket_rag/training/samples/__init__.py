"""Questions with their passages: published formats, made-up ones, and questions that the model writes about a store.

No gradients and no scores. It imports `errors`, `engine`, `corpus`, `store` and `answering`.
"""
