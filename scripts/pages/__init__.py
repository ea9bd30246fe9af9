"""Generated pages of the docs."""
