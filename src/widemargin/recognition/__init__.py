"""Evaluation of embeddings of classes that were not in the training set."""
