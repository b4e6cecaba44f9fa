"""Benchmarks of time and size, one file for each `kvpacket bench` command.

`bench.fidelity` measures fidelity. This package imports `bench` and every package below it.
"""
