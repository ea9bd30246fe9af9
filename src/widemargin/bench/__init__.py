"""Benchmarks against peers and against the limit, as ratios and errors in one run."""
