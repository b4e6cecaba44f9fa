"""From a question to an answer: `RAG`, conversations, prompts made of packets and text, decoding, and what it cost.

How packets are stored or a model runs does not belong here. It imports `store` and the parts below it.
"""
