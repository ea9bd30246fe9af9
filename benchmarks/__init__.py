"""Benchmarks, from the checkout: `python -m benchmarks NAME`."""
