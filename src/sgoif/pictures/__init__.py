"""Pictures of the user's data: found by id, made fit to look at, never kept."""

from sgoif.pictures.decode import PictureError
from sgoif.pictures.display import content_hash, displayed
from sgoif.pictures.places import Pictures, find_pictures
from sgoif.pictures.thumbnails import choose_side, data_uri, thumbnail

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
