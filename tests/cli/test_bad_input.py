"""Whatever lies in the folder: a clear message or a counted skip, never a traceback; and nothing leaves the machine."""

import contextlib
import io
import json
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sgoif.errors import SgoifError
from sgoif.pictures.decode import PictureError, decode
from sgoif.sources.labelled import open_source
from tests.cli.runs import NASTY, answer, bare, invoke, noisy, read_output, write_run

BACKBONE = "tests.colours:backbone"


def png(colour=(200, 30, 30), *, size=(12, 12), mode="RGB", kind="PNG", **options):
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, kind, **options)
    return file.getvalue()


def animated():
    file = io.BytesIO()
    frames = [Image.new("P", (9, 9), i) for i in range(3)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def deep():
    file = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 144).reshape(12, 12).astype(np.uint16)).save(file, "PNG")
    return file.getvalue()


def turned():
    picture = Image.new("RGB", (14, 9), (10, 200, 10))
    exif = picture.getexif()
    exif[0x0112] = 6
    file = io.BytesIO()
    picture.save(file, "JPEG", exif=exif)
    return file.getvalue()


READABLE = {
    "animated.gif": animated(),
    "cmyk.jpg": png((0, 255, 255, 0), mode="CMYK", kind="JPEG"),
    "deep.png": deep(),
    "turned.jpg": turned(),
    "alpha.png": png((0, 0, 0, 0), mode="RGBA"),
    "one-bit.png": png(1, mode="1"),
    "tiny.png": png(size=(1, 1)),
    "thin.png": png(size=(400, 1)),
}
BROKEN = {
    "empty.png": b"",
    "text.jpg": b"this is no picture",
    "cut.png": png()[:45],
    "header.png": b"\x89PNG\r\n\x1a\n" + b"\0" * 60,
    "page.gif": b"<html></html>",
}


@pytest.fixture
def folder(tmp_path):
    """Two classes of plain noise, every kind of odd file among them."""
    rng = np.random.default_rng(0)
    for label in ("<b>cat</b>", "dog & co"):
        place = tmp_path / "data" / label.replace("/", "_")
        place.mkdir(parents=True)
        for number in range(24):
            pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f'it\'s "{number}" – ü.png')
    odd = next((tmp_path / "data").iterdir())
    for name, content in (READABLE | BROKEN).items():
        (odd / name).write_bytes(content)
    return tmp_path / "data"


def test_odd_pictures_are_read_and_broken_ones_counted(folder, tmp_path):
    document = answer("scan", folder, "--out", tmp_path / "run", "--backbone", BACKBONE)
    assert document["summary"]["num_examples"] == 48 + len(READABLE)
    shown = read_output("info", tmp_path / "run")
    assert f"{len(BROKEN)}" in shown and "could not be read" in shown


WITHOUT_NETWORK = """
import json, sys
def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"):
        print("NETWORK", event, args[1:], file=sys.stderr, flush=True)
        raise RuntimeError("the network is closed")
sys.addaudithook(watch)
from sgoif.cli.main import app
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as ended:
        print("ENDED", arguments[0], ended.code, file=sys.stderr, flush=True)
import socket
socket.getaddrinfo("x", 1)  # the watch itself works
"""


def test_a_scan_never_asks_the_network(folder, tmp_path):
    run, asked = str(tmp_path / "run"), ("issues", "classes", "duplicates", "info")
    lines = [["scan", str(folder), "--out", run, "--backbone", BACKBONE], *([command, run] for command in asked)]
    words = [sys.executable, "-c", WITHOUT_NETWORK, json.dumps(lines)]
    said = subprocess.run(words, capture_output=True, env=bare(), timeout=300, encoding="utf-8").stderr
    assert re.findall(r"^NETWORK (\S+)", said, re.M) == ["socket.getaddrinfo"], said
    codes = dict(re.findall(r"^ENDED (\w+) (\d)$", said, re.M))
    assert codes.pop("scan") == "0" and set(codes) == set(asked) and set(codes.values()) <= {"0", "2"}, said


def write_table(folder, labels, **columns):
    """Pictures of one colour with these labels; returns the command that scans them."""
    rng = np.random.default_rng(0)
    pictures = [png(tuple(rng.integers(0, 256, 3).tolist())) for _ in labels]
    columns |= {"image": pictures, "label": pa.array(labels, pa.int64())}
    pq.write_table(pa.table(columns), folder / "data.parquet")
    return "scan", folder / "data.parquet", "--backbone", BACKBONE, "--out", folder / "run"


@pytest.mark.parametrize("label", [-1, 2**40, None])
def test_labels_that_are_no_class_are_counted(tmp_path, label):
    done = invoke(*write_table(tmp_path, [i % 2 for i in range(59)] + [label]))
    assert done.exit_code in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert done.exit_code == 0 or "label" in done.stderr or "class" in done.stderr


def test_long_and_nasty_ids_survive_the_whole_way(tmp_path):
    ids = [*(item.replace("\x00", "") for item in NASTY), "x" * 10_000, *(f"n{i}" for i in range(75))]
    read_output(*write_table(tmp_path, [i % 2 for i in range(len(ids))], id=ids))
    read_output("issues", tmp_path / "run", "--top", 0, "--csv", tmp_path / "all.csv")
    assert {row["id"] for row in answer("issues", tmp_path / "run", "--top", 0)["issues"]} == set(ids)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [i % 2 for i in range(40)])
    return (folder / "data.parquet").read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_table_is_refused_in_words_or_read(parquet, tmp_path, data):
    damaged = bytearray(parquet)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(1, len(damaged)))] if data.draw(st.booleans()) else damaged
    path = tmp_path / "damaged.parquet"
    path.write_bytes(bytes(damaged))
    try:
        source = open_source(path)
        for item in source.encoded(np.arange(len(source.ids))):
            with contextlib.suppress(PictureError):
                decode(item)
    except SgoifError as error:
        assert str(path.name) in str(error) or "damaged" in str(error)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_run_is_refused_in_words_or_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    write_run(folder / "r", noisy())
    files = sorted(path for path in (folder / "r").rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    content = bytearray(path.read_bytes())
    if content and data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    for _ in range(data.draw(st.integers(1, 5)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    for command in ("issues", "info", "classes"):
        done = invoke(command, folder / "r")
        assert done.exit_code in (0, 2), (command, path.name, done.stderr)
        assert "Traceback" not in done.stderr
