"""Pictures of the user's data: found by id, made fit to look at, never kept."""

from sgoif.pictures.decode import PictureError
from sgoif.pictures.display import choose_side, content_hash, data_uri, displayed, thumbnail
from sgoif.pictures.places import Pictures, find_pictures

__all__ = [
    "PictureError",
    "Pictures",
    "choose_side",
    "content_hash",
    "data_uri",
    "displayed",
    "find_pictures",
    "thumbnail",
]
