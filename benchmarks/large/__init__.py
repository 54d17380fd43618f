"""Tier G: the large datasets of the source paper, for a machine that has them and a GPU."""
