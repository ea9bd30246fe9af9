"""Angles, log-sums, precision, validation of inputs, random numbers, and communication between processes."""
