"""Metrics as pure functions: angles, classification, verification, retrieval, few-shot, open sets."""
