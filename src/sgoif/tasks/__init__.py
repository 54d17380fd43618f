"""What is being learned: the per-example loss of each task."""
