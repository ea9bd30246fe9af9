"""Classical losses, one per file; the registry finds them by file name."""
