"""Angles, log-sums, precision, checks of inputs, random numbers, and exchange between processes."""
