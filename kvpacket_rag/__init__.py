"""Answer from stored key/value packets: the model reads each chunk once, and computes only the question."""

__version__ = "0.1.0"
