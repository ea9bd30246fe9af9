"""What several recipes share; not recipes themselves."""
