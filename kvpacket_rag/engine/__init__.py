"""Engines that run a model: the `Engine` protocol, context assembly, prompts as token ids, and one folder per library.

The parts above use a model only through `protocol.Engine`. This part imports `errors`, `display.progress` and
`packets`, but never documents or stores.
"""
