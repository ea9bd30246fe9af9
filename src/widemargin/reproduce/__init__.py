"""Recipes that reproduce the tables and figures of the ArcGrad paper, one file each with `add_arguments` and `run`.

A recipe's docstring is the help of its command: contents, cost, and expected results.
"""
