"""Images by name or from folders: reading, splits, batches, augmentation."""

MAX_IMAGE_SIZE = 4096  # pixels along a side of an image as a network sees it: 200 MB of numbers in colour
