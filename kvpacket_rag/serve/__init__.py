"""A knowledge base over HTTP (extra `serve`): OpenAI's chat interface, documents, metrics, and a page to try it."""
