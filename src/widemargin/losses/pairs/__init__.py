"""Losses on embeddings, one per file; the catalogue finds them by file name."""
