"""Tables from somebody else: paths in their rows are read below the table's folder, and nowhere else."""

import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.ood.stored import stored_pictures
from sgoif.pictures.decode import PictureError, decode
from sgoif.scoring.pieces import list_pieces
from sgoif.scoring.records import read_records
from sgoif.sources import find_pictures
from sgoif.sources.labelled import open_source
from tests.pictures.files import png


@pytest.fixture
def table(tmp_path):
    """A table whose rows name a file beside it, and others that it has no business with."""
    secret, folder = tmp_path / "private" / "secret.png", tmp_path / "data"
    secret.parent.mkdir()
    (folder / "inside").mkdir(parents=True)
    secret.write_bytes(png())
    (folder / "inside" / "fine.png").write_bytes(png())
    (folder / "link.png").symlink_to(secret)
    (folder / "near").symlink_to(folder / "inside")
    paths = [
        "inside/fine.png",
        "near/fine.png",
        str(folder / "inside" / "fine.png"),
        str(secret),
        "../private/secret.png",
        "inside/../../private/secret.png",
        "link.png",
        "http://127.0.0.1:9/secret.png",
        f"file://{secret}",
    ]
    rows = {"image": [{"bytes": None, "path": path} for path in paths], "label": [i % 2 for i in range(len(paths))]}
    pq.write_table(pa.table({"id": [str(i) for i in range(len(paths))], **rows}), folder / "train.parquet")
    return folder / "train.parquet", 3, paths


def readable(values):
    found = []
    for value in values:
        try:
            decode(value)
            found.append("")
        except PictureError as error:
            found.append(str(error))
    return found


def test_rows_are_read_inside_the_folder_of_the_table_only(table):
    path, num_inside, paths = table
    everything = np.arange(len(paths))
    reasons = readable(open_source(path).encoded(everything))
    assert reasons[:num_inside] == [""] * num_inside
    assert all("outside the table's folder" in reason for reason in reasons[num_inside:-2])
    assert all("addresses in tables are not opened" in reason for reason in reasons[-2:])
    assert readable(value for _, value in stored_pictures(path)) == reasons
    assert readable(record.picture for piece in list_pieces(str(path)) for record in read_records(piece)) == reasons
    shown = list(find_pictures(path).read([str(i) for i in everything]))
    assert [value is not None for value in shown] == [reason == "" for reason in reasons]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_in_a_folder_of_pictures_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(png())
    found = []

    def read():
        found.append({id: readable([value])[0] for id, value in stored_pictures(tmp_path)})
        found.append(list(find_pictures(tmp_path).read(["a.png"])))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(60)
    assert found == [{"a.png": "it is no regular file", "b.png": ""}, [None]]
