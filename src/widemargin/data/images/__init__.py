"""Images by name or from folders: reading, splits, batches, augmentation."""
