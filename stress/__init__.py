"""Tests of faults, bad input and attacks on this machine: `python -m stress`."""
