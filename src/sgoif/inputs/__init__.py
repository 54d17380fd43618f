"""Examples as users have them: datasets, tensors and loaders read by position, their items, labels and ids."""
