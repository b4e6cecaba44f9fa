"""An HTTP server for a knowledge base (extra `serve`): OpenAI's chat API, documents, metrics, and a page to try it.

This part handles requests and responses only. `answering` produces the answers. It imports `answering` and the parts
below it.
"""
