"""Regularizers of class weights, one per file; the registry finds them by file name."""
