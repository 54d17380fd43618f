"""Sources of labelled pictures: real files in every shape people keep them in."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sgoif.errors import SgoifError
from sgoif.scan.pictures import PictureError, decode, square
from sgoif.scan.sources import open_source

RED = (200, 30, 40)


def png(colour=RED, size=(8, 6), mode="RGB", **saving):
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, saving.pop("format", "PNG"), **saving)
    return buffer.getvalue()


def test_a_folder_of_class_folders(tmp_path):
    for name in ("dog/1.png", "cat/a/2.PNG", "cat/ü '\"<b>.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / "stray.png").write_bytes(png())
    source = open_source(tmp_path)
    assert source.class_names == ("cat", "dog")
    assert sorted(source.ids) == ["cat/a/2.PNG", "cat/ü '\"<b>.png", "dog/1.png"]
    assert [source.class_names[label] for label in source.labels] == [i.split("/")[0] for i in source.ids]
    assert all(decode(item).size == (8, 6) for item in source.encoded(np.arange(3)))


@pytest.mark.parametrize("kind", ["bytes", "struct"])
@pytest.mark.parametrize("labels", [[1, 0, 1, None, 2], ["b", "a", "b", None, "c"]])
def test_parquet_with_encoded_pictures(tmp_path, kind, labels):
    pictures = [png((20 * i, 0, 0)) for i in range(5)]
    images = pictures if kind == "bytes" else [{"bytes": data, "path": None} for data in pictures]
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "all.parquet", row_group_size=2)
    source = open_source(tmp_path / "all.parquet")
    assert source.labels.tolist() == [1, 0, 1, -1, 2]
    assert len(source.class_names) == 3
    assert list(source.ids) == ["0", "1", "2", "3", "4"]
    for positions in ([4, 0, 2, 3], [0, 1, 2, 3, 4]):
        found = [decode(item).getpixel((0, 0))[0] for item in source.encoded(np.array(positions))]
        assert found == [20 * i for i in positions]


def test_a_hugging_face_folder_knows_its_class_names(tmp_path):
    features = {"image": {"_type": "Image"}, "label": {"names": ["wolf", "husky"], "_type": "ClassLabel"}}
    table = pa.table({"image": [{"bytes": png(), "path": "x.png"}] * 3, "label": [0, 1, 0], "id": ["p", "q", "r"]})
    with (
        pa.OSFile(str(tmp_path / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=2)
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": features}))
    source = open_source(tmp_path)
    assert source.class_names == ("wolf", "husky")
    assert list(source.ids) == ["p", "q", "r"]
    assert decode(next(source.encoded(np.array([2])))).size == (8, 6)
    tagged = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    (tmp_path / "hub" / "data").mkdir(parents=True)
    pq.write_table(tagged, tmp_path / "hub" / "data" / "train-0.parquet")
    assert open_source(tmp_path / "hub").class_names == ("wolf", "husky")


def test_mistakes_are_named(tmp_path):
    with pytest.raises(SgoifError, match="does not exist"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(SgoifError, match="one folder per class"):
        open_source(tmp_path)
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(SgoifError, match="neither a folder nor"):
        open_source(tmp_path / "a.csv")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(SgoifError, match="cannot be read as parquet"):
        open_source(tmp_path / "b.parquet")
    pq.write_table(pa.table({"image": [b"x"], "weight": [1.0]}), tmp_path / "c.parquet")
    with pytest.raises(SgoifError, match="no column with a label: it has image, weight"):
        open_source(tmp_path / "c.parquet")


def test_pictures_of_every_kind_become_rgb():
    frames = [Image.new("P", (5, 5), i) for i in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    deep = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)).save(deep, "PNG")
    turned = Image.new("RGB", (8, 6), RED)
    exif = turned.getexif()
    exif[0x0112] = 6  # stored lying on its side
    side = io.BytesIO()
    turned.save(side, "JPEG", exif=exif)
    cmyk = png((0, 255, 255, 0), mode="CMYK", format="JPEG")
    for data, size in (
        (buffer.getvalue(), (5, 5)),
        (deep.getvalue(), (8, 8)),
        (side.getvalue(), (6, 8)),
        (cmyk, (8, 6)),
    ):
        picture = decode(data)
        assert picture.mode == "RGB"
        assert picture.size == size
    shades = np.asarray(decode(deep.getvalue()))[..., 0]
    assert shades.min() == 0 and shades.max() == 255 and len(np.unique(shades)) > 32
    assert decode(png((0, 0, 0, 0), mode="RGBA")).getpixel((0, 0)) == (255, 255, 255)
    assert decode(cmyk).getpixel((0, 0))[0] > 200


@pytest.mark.parametrize("data", [b"", b"not a picture", png()[:40], b"\x89PNG\r\n\x1a\n" + b"\0" * 50])
def test_broken_pictures_raise_one_kind_of_error(data):
    with pytest.raises(PictureError):
        decode(data)


def test_a_picture_that_claims_too_many_pixels_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(PictureError, match="DecompressionBomb"):
        decode(png(size=(8, 8)))


def test_square_keeps_the_middle():
    picture = Image.new("RGB", (30, 10), (0, 0, 0))
    picture.paste(Image.new("RGB", (10, 10), RED), (10, 0))
    found = square(picture, 10)
    assert found.shape == (10, 10, 3)
    assert (found == np.array(RED)).all()
