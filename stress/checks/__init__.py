"""One file per check; see `stress.check`."""
