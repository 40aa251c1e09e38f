"""Correctness first, then time: `python -m kernels.benchmarks.run`."""
