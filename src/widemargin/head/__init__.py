"""Class weights with a margin loss: `Head`, `Objective`, and the backends that compute the loss."""
