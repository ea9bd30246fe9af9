"""Evaluation of embeddings on classes that were never trained on."""
