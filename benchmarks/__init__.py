"""Benchmarks: each module runs by `python -m benchmarks.NAME [--quick]` and prints one JSON line."""
