"""Margin losses, one per file; the catalogue finds them by file name."""
