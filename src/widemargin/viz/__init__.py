"""Results as tables, figures and single-file pages; never trains anything."""
