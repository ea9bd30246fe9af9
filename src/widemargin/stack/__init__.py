"""Many small models trained at once as one batched model: stacked weights, each model its own state."""
