"""Code that several recipes share; no recipes."""
