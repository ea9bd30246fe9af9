"""Measurements: pure functions of (x, y, W), with meters that add up over batches and ranks."""
