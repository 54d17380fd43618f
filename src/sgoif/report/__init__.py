"""The page on which people look at a run's findings and decide."""
