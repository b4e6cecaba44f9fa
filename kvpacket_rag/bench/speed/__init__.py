"""Benchmarks of time and size, one file for each `kvpacket bench` command.

Fidelity is measured elsewhere. It imports `bench` and every part below it.
"""
