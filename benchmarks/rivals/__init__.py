"""What others do with the same training."""
