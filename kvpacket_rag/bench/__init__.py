"""Measurements: fidelity to full prefill with its measures, anchors compared for a store, and reports.

Every comparison measures its sides in turns in one run. It imports `training.samples`, `training.teacher` and every part below.
"""
