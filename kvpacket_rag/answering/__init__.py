"""Answering questions: `RAG`, conversations, prompts made of packets and text, decoding, and the cost of an answer.

Code that stores packets or runs a model does not belong here. This part imports `store` and the parts below it.
"""
