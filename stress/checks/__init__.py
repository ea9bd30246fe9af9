"""One file per check; `stress.check` says what a check is."""
