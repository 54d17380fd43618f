"""Pictures: decoded with care, and made fit to look at."""

from sgoif.pictures.decode import PictureError
from sgoif.pictures.display import choose_side, content_hash, data_uri, displayed, thumbnail

__all__ = ["PictureError", "choose_side", "content_hash", "data_uri", "displayed", "thumbnail"]
