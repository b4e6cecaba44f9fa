"""Benchmarks: fidelity to full prefill and its measures, the comparison of anchors for a store, and reports.

Every comparison alternates between its sides within one run. This package imports `training.samples`,
`training.teacher` and every package below it.
"""
