"""Code shared by several recipes."""
