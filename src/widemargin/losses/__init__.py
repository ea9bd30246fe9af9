"""Margin, pair and classical losses, their registry, and the grammar of loss strings."""
