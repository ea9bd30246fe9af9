"""Pages of the docs that are generated."""
