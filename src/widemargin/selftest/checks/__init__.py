"""One check = one file: `TITLE`, `KIND`, `LONG` and `run(size) -> Outcome`; nobody edits a list."""
