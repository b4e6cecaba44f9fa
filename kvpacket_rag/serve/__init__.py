"""A knowledge base over HTTP (extra `serve`): OpenAI's chat interface, documents, metrics, and a page to try it.

Requests and responses only; answers come from `answering`. It imports `answering` and the parts below it.
"""
