"""Packets and the values that identify and store them: fingerprint, anchor, adapter, number formats, rotation, codec.

This part consists of values and of functions on tensors. It does not depend on models, stores or databases, and it
imports only `errors`.
"""
