"""Inputs for commands, sound and damaged: runs, tables, decisions and folders of pictures, drawn by hypothesis."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

from sgoif.evidence import SKETCH_COLUMNS
from tests.cli.runs import NAMES, held_out, noisy, write_run

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\x7f\u202eevil"
FACTS = {
    "head": "fc",
    "path": "backbone",
    "judging_error": "none",
    "faults": {"RuntimeError": 3},
    "overhead": 0.1,
    "overhead_by_part": {"solve": 0.1},
    "counters": {"steps": 10, "visits": 400, "visits_not_judged": 3, "refreshes": 2},
    "plan": {"stride": 2, "layers": ["fc"], "observe_every": 3, "examples_per_refresh": 4, "refresh_every": 5},
    "plan_changes": [{"step": 3, "overhead": 0.1, "plan": {"stride": 4, "layers": ["fc"]}}],
    "estimate": {"kind": "counted", "evidence": 9.0},
    "num_not_judged": 3,
    "unreadable": 2,
    "transition": (np.full((4, 4), 0.02) + 0.92 * np.eye(4)).tolist(),
    "nearly_same": 25,
    "num_verified": 3,
    "switched_off": None,
    "task": None,
}

TEXTS = st.sampled_from(
    ["", "x", "cat", "=1+1", "a;=1", EVIL, "x" * 5000, "\ud800", "日本語", "0", "-1", "nan", "../x"]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 3, 2**31, 2**70, 1.5, -0.5, float("nan"), float("inf"), 1e308]),
    TEXTS,
    st.sampled_from([[], {}, [None], [[]], {"a": 1}, ["x"], [1, 2], [[1.0, 2.0], [3.0]], list(range(3000)), {"": {}}]),
)


def sketched(examples, seed=0):
    """The examples with sketches, of which the first two are copies."""
    words = np.random.default_rng(seed).integers(0, 2**62, (len(examples["id"]), len(SKETCH_COLUMNS)))
    words[1] = words[0]
    return examples | {name: words[:, i] for i, name in enumerate(SKETCH_COLUMNS)}


def make_templates(folder):
    """Write a sound run, an older one of the same data, an unfinished one and one about nothing."""
    held = held_out(24)
    held["trusted"] = np.arange(24) >= 20
    examples = noisy((0.3, 0.1, 0.0, 0.0), per_class=25)
    write_run(folder / "run", sketched(examples), holdout=held, trusted=False, **FACTS)
    write_run(folder / "old", noisy((0.1, 0.2, 0.0, 0.0), per_class=25))
    write_run(folder / "unfinished", None, is_finished=False)
    write_run(folder / "numbered", noisy((0.2, 0, 0, 0), 25, ids=np.arange(100)), names=[], transition=None)
    for i, name in enumerate(NAMES[:2]):
        (folder / "photos" / name).mkdir(parents=True)
        for k in range(30):
            (folder / "photos" / name / f"{k}.png").write_bytes(picture(i, k))
    np.save(folder / "features.npy", np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32))
    columns = {
        "id": [f"x{i}" for i in range(60)],
        "image": [picture(i) for i in range(60)],
        "label": [i % 2 for i in range(60)],
    }
    pq.write_table(pa.table(columns), folder / "data.parquet")
    rows = [("img/000.png", 0, "relabel", 1), ("img/001.png", 0, "drop", ""), ("held/000.png", 0, "keep", "")]
    write_rows(folder / "decisions.csv", [("id", "given_label", "decision", "label"), *rows])
    people = [(f"img/{i:03d}.png", "ann" if i % 2 else "bo") for i in range(100)]
    write_rows(folder / "own.csv", [("id", "who"), *people])
    write_rows(folder / "filled.csv", [("id", "verified_label"), ("held/000.png", "cat"), ("held/001.png", "1")])
    (folder / "labels.json").write_text(json.dumps([{"data": {"id": "img/000.png", "given_label": 0}}]))


def picture(i=0, k=0, size=(9, 9), kind="PNG"):
    file = io.BytesIO()
    pixels = np.random.default_rng(100 * i + k).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def damage_bytes(draw, path):
    """Cut a file, or change some of its bytes."""
    content = bytearray(path.read_bytes())
    if not content or draw(st.booleans()):
        content = content[: draw(st.integers(0, len(content)))]
    for _ in range(draw(st.integers(0, 4)) if content else 0):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    path.write_bytes(bytes(content))


def damage_document(draw, path):
    """Replace or remove one value of a JSON document, or break all of it."""
    kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "whole", "deep", "bytes"]))
    if kind == "bytes":
        return damage_bytes(draw, path)
    if kind == "deep":
        depth = draw(st.sampled_from([40, 60, 500, 50_000]))
        path.write_text('{"schema_version": 1, "attempts": [], "facts": {"own": ' + "[" * depth + "]" * depth + "}}")
        return None
    try:
        document = json.loads(path.read_text("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if kind == "whole" or not _paths(document):
        document = draw(VALUES)
    else:
        *way, last = draw(st.sampled_from(_paths(document)))
        place = document
        for key in way:
            place = place[key]
        if kind == "remove":
            del place[last]
        else:
            place[last] = draw(VALUES)
    path.write_text(json.dumps(document))
    return None


def _paths(value, way=()):
    """All places in a document; of a list the first two."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [path for key, item in items for path in [(*way, key), *_paths(item, (*way, key))]]


LABELS = st.sampled_from([-5, -1, 0, 1, 3, 4, 7, 2**31 - 1])
NUMBERS = st.sampled_from([float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 0.5, 2.0, 1e300, None])


TABLE_KINDS = ["drop", "type", "values", "values", "nulls", "twice", "empty", "foreign", "extra", "bytes", "one"]
FOLDER_KINDS = ["file", "file", "empty-class", "nested", "link", "loop", "pipe", "many", "one", "clear", "odd-name"]


def damage_table(draw, path):
    """Change a Parquet file: its columns, types, values, metadata or bytes."""
    kind = draw(st.sampled_from(TABLE_KINDS))
    if kind == "bytes":
        return damage_bytes(draw, path)
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError):
        return None
    metadata = table.schema.metadata
    if table.num_columns:
        name = draw(st.sampled_from(table.column_names))
        table = _changed(draw, table, name, kind)
    if kind == "foreign":
        metadata = draw(st.sampled_from([None, {b"sgoif.schema_version": b"99"}, {b"sgoif.schema_version": b"x"}]))
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return None


def _changed(draw, table, name, kind):
    place, column = table.column_names.index(name), table[name]
    if kind == "drop":
        return table.drop_columns([name])
    if kind == "twice":
        return pa.concat_tables([table, table])
    if kind in ("empty", "one"):
        return table.slice(0, int(kind == "one"))
    if kind == "extra":
        new = draw(st.sampled_from(["Extra", "p_mislabeled2", "source", "place", EVIL]))
        return table.append_column(new, column)
    if kind == "nulls":
        return table.set_column(place, table.schema.field(name), pa.nulls(len(table), column.type))
    if kind == "type":
        text = pa.array([str(value) for value in column.to_pylist()], pa.string())
        return table.set_column(place, name, draw(st.sampled_from([text, pa.nulls(len(table), pa.bool_())])))
    if kind == "values" and len(table) and not pa.types.is_list(column.type):
        values = _with_other_values(draw, column.to_pylist(), column.type)
        return table.set_column(place, table.schema.field(name), pa.array(values, column.type))
    return table


def _with_other_values(draw, values, kind):
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(values) - 1))
        if pa.types.is_string(kind):
            values[at] = draw(TEXTS).encode("utf-8", "replace").decode()
        elif pa.types.is_floating(kind):
            values[at] = draw(NUMBERS)
        elif pa.types.is_integer(kind):
            values[at] = draw(LABELS)
        elif pa.types.is_boolean(kind):
            values[at] = draw(st.sampled_from([True, False, None]))
    return values


HEADERS = ["id", "given_label", "given_name", "decision", "label", "label_name", "note", "reviewer", "decided_at"]
CALLED = ["keep", "relabel", "drop", "several", "none", "unsure", "KEEP ", "2026-01-01T00:00:00Z", "=1", "+"]
NAMED = ["img/000.png", "img/001.png", "held/000.png", "0", "1", "3.0", "cat", "dog", "1|2", "0|x"]
CELLS = st.one_of(st.sampled_from(NAMED), st.sampled_from(CALLED), TEXTS)


def write_decisions(draw, path):
    """Write a CSV file of some rows that people might have made of it."""
    header = draw(st.lists(st.sampled_from([*HEADERS, "who", "verified_label", EVIL, ""]), max_size=8))
    if draw(st.booleans()):
        header = ["id", "given_label", "decision", *header]
    rows = draw(st.lists(st.lists(CELLS, max_size=10), max_size=6))
    rows += rows[:1]
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    text = io.StringIO()
    csv.writer(text, delimiter=draw(st.sampled_from(",;\t"))).writerows([header, *rows])
    path.write_bytes(text.getvalue().encode(encoding, "replace"))


def damage_folder(draw, folder):
    """Put something odd into a folder of class folders."""
    kind = draw(st.sampled_from(FOLDER_KINDS))
    target = folder / draw(st.sampled_from([*NAMES[:2], "new", "."]))
    target.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        contents = [b"", b"text", picture()[:40], picture(size=(1, 1)), picture(kind="GIF"), b"<svg/>"]
        content = draw(st.sampled_from(contents))
        name = draw(st.sampled_from(["a.png", "b.jpg", "c.txt", "d.gif", ".hidden.png", "no suffix"]))
        (target / name).write_bytes(content)
    elif kind == "empty-class":
        (folder / "nobody").mkdir(exist_ok=True)
    elif kind == "nested":
        (target / "deep" / "deeper").mkdir(parents=True, exist_ok=True)
        (target / "deep" / "deeper" / "x.png").write_bytes(picture(3, 3))
    elif kind == "link" and not os.path.lexists(target / "link.png"):
        os.symlink(draw(st.sampled_from(["0.png", "/dev/null", "nowhere.png", "/etc/hostname"])), target / "link.png")
    elif kind == "loop" and not os.path.lexists(target / "loop"):
        os.symlink("..", target / "loop")
    elif kind == "pipe" and not os.path.lexists(target / "pipe.png"):
        os.mkfifo(target / "pipe.png")
    elif kind == "many":
        for i in range(40):
            (folder / f"class {i}").mkdir(exist_ok=True)
            (folder / f"class {i}" / "x.png").write_bytes(picture(i))
    elif kind == "one":
        (folder / "single").mkdir(exist_ok=True)
        (folder / "single" / "x.png").write_bytes(picture(7))
    elif kind == "clear":
        shutil.rmtree(target, ignore_errors=True)
    elif kind == "odd-name":
        odd = draw(st.sampled_from(["\x1b[31m", "日本語", "=1;+2", "a\nb", "-rf", "x" * 200, "\udcff"]))
        (folder / odd).mkdir(exist_ok=True)
        (folder / odd / f"{odd[:50]}.png").write_bytes(picture(9))
