"""A folder in, a run out: finds label errors in images or embeddings without a training loop of one's own."""
