"""Training on images: one explicit loop, and what it needs, each in a file of its own."""
