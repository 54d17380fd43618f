"""Embeddings in files: in the order of the data or by id, and refused where they fit neither."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.errors import SgoifError
from sgoif.scanning.features import order_of, read_features

IDS = [f"cat/{i}.png" for i in range(6)]
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_rows_by_position_and_by_id_come_in_the_order_of_the_data(tmp_path):
    order = np.array([3, 0, 5, 1, 4, 2])
    shuffled, names = ROWS[order], [IDS[i] for i in order]
    np.save(tmp_path / "plain.npy", ROWS)
    np.save(tmp_path / "shuffled.npy", shuffled)
    (tmp_path / "ids.txt").write_text("\n".join(names) + "\n")
    np.savez(tmp_path / "named.npz", ids=np.array(names), features=shuffled)
    pq.write_table(pa.table({"id": names, "row": shuffled.tolist()}), tmp_path / "lists.parquet")
    pq.write_table(pa.table({"id": names, "a": shuffled[:, 0], "b": shuffled[:, 1]}), tmp_path / "columns.parquet")
    lines = ["id;label;a;b", *(f"{name};7;{a:.0f};{b:.1f}" for name, (a, b) in zip(names, shuffled))]
    (tmp_path / "columns.csv").write_text("\n".join(lines) + "\n")  # whole numbers are features too, the label is none
    assert np.array_equal(read_features(tmp_path / "plain.npy", IDS), ROWS)
    for name, ids in (
        ("shuffled.npy", tmp_path / "ids.txt"),
        ("named.npz", None),
        ("lists.parquet", None),
        ("columns.parquet", None),
        ("columns.csv", None),
    ):
        assert np.array_equal(read_features(tmp_path / name, IDS, ids), ROWS)
        assert order_of(tmp_path / name, ids, IDS) == "by id"
    assert order_of("plain.npy", None, IDS) == "by position: row 0 is 'cat/0.png', the last row is 'cat/5.png'"


def test_what_does_not_fit_is_refused_with_what_is_needed(tmp_path):
    objects = np.array([[1, None]] * 6, dtype=object)
    ragged = [[1.0]] * 5 + [[1.0, 2.0]]
    for name, save, words in (
        ("few.npy", lambda p: np.save(p, ROWS[:5]), r"has 5 rows, expected .* one row per example, \[6, D\]"),
        ("cube.npy", lambda p: np.save(p, ROWS[..., None]), r"has the shape \[6, 2, 1\]"),
        ("text.npy", lambda p: np.save(p, ROWS.astype(str)), "holds values of type <U"),
        ("objects.npy", lambda p: np.save(p, objects, allow_pickle=True), "cannot be read as numbers"),
        ("objects.npz", lambda p: np.savez(p, ids=np.array(IDS, object), features=ROWS), "`ids` of .* holds objects"),
        ("no.npz", lambda p: np.savez(p, rows=ROWS), "lacks ids and features: it holds rows"),
        ("rows.txt", lambda p: p.write_text("1"), "is neither .npy, .npz, .parquet nor .csv"),
        ("a.parquet", lambda p: pq.write_table(pa.table({"id": IDS, "n": ["x"] * 6}), p), "none of numbers"),
        ("b.parquet", lambda p: pq.write_table(pa.table({"a": [1.0]}), p), "no column `id`"),
        ("c.parquet", lambda p: pq.write_table(pa.table({"id": ["x"], "r": [[1.0]]}), p), "lacks 6 of 6 ids"),
        ("d.parquet", lambda p: pq.write_table(pa.table({"id": IDS, "r": ragged}), p), "differ"),
        ("e.parquet", lambda p: p.write_bytes(b"PAR1"), "cannot be read as Parquet"),
    ):
        save(tmp_path / name)
        with pytest.raises(SgoifError, match=words):
            read_features(tmp_path / name, IDS)
    np.save(tmp_path / "rows.npy", ROWS)
    for ids, words in ((IDS[:5], "has 6 rows, expected"), ([*IDS[:5], IDS[0]], "names 1 ids more than once")):
        (tmp_path / "ids.txt").write_text("\n".join(ids))
        with pytest.raises(SgoifError, match=words):
            read_features(tmp_path / "rows.npy", IDS, tmp_path / "ids.txt")


@pytest.mark.parametrize("header", [b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,", b"{'descr'", b"\xff\xfe"])
def test_a_damaged_header_is_refused_in_words(tmp_path, header):
    place = tmp_path / "features.npy"
    place.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(SgoifError, match="cannot be read as numbers"):
        read_features(place, ["a", "b", "c"])
