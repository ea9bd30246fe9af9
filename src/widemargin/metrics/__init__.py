"""Measurements of embeddings as pure functions: angles, verification, retrieval, few-shot, open sets; confusion."""
