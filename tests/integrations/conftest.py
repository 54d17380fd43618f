"""Programs of their own among the tests, which find their modules another way."""

collect_ignore = ["lightning_world.py"]
