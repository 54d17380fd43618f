"""Where the user's data lies: labelled examples in order, and what a page shows of them by id. Nothing is copied."""

from sgoif.sources.places import find_pictures
from sgoif.sources.reading import Pictures

__all__ = ["Pictures", "find_pictures"]
