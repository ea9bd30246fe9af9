"""Class weights under a margin: `Head`, `Objective`, and the backends that compute the loss."""
