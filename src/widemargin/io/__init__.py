"""Files, text and processes: errors of one line, bounded readers, locks, progress."""
