"""Faults, bad input and attacks, tried on this machine: `python -m stress`."""
