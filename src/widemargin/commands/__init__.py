"""The longer commands, one file each: their options, and what they call. Nothing heavy is imported for `--help`."""
