"""Angles, precision, checks of inputs, random numbers, and what several processes share."""
