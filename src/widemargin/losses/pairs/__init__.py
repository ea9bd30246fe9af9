"""Losses on pairs and triplets of embeddings, one per file; the registry finds them by file name."""
