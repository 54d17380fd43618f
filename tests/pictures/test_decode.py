"""Decoding: pictures as people have them become 8-bit RGB, broken ones raise one kind of error."""

import io
import os
import resource
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from sgoif.pictures.decode import MOST_BYTES, PictureError, apply_window, decode, square
from tests.cli.runs import bare
from tests.pictures.files import RED, png


def test_a_picture_that_claims_too_many_pixels_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(PictureError, match="DecompressionBomb"):
        decode(png(size=(8, 8)))


@pytest.mark.parametrize("data", [b"", b"not a picture", png()[:40], b"\x89PNG\r\n\x1a\n" + b"\0" * 50])
def test_broken_pictures_raise_one_kind_of_error(data):
    with pytest.raises(PictureError):
        decode(data)


def test_square_keeps_the_middle():
    picture = Image.new("RGB", (30, 10), (0, 0, 0))
    picture.paste(Image.new("RGB", (10, 10), RED), (10, 0))
    found = square(picture, 10)
    assert found.shape == (10, 10, 3)
    assert (found == np.array(RED)).all()


def test_a_program_named_as_a_picture_is_never_started(tmp_path, monkeypatch):
    """Pillow reads EPS by starting Ghostscript; before, a file called .jpg did so."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "cat.jpg").write_bytes(eps)
    for source in (tmp_path / "cat.jpg", eps):
        with pytest.raises(PictureError, match="cannot identify"):
            decode(source)
    assert not (tmp_path / "started").exists()


def small_bomb(side=9000):
    """A 16-bit grey picture of zeros: 81 million pixels in some hundred kilobytes."""
    raw = zlib.compressobj(9)
    body = b"".join(raw.compress(b"\0" * (1 + 2 * side)) for _ in range(side)) + raw.flush()

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_what_decoding_would_take_is_known_before_it_is_done(tmp_path):
    """Before: 3.3 GB for this file of less than 200 kB."""
    data = small_bomb()
    assert len(data) < 400_000
    (tmp_path / "bomb.png").write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PictureError, match=r"9,000 x 9,000 pixels of mode I;16 would take 1\.6 GB"):
        decode(tmp_path / "bomb.png")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


@pytest.mark.parametrize("lossless", [True, False])
def test_the_canvas_of_a_webp_is_looked_at_before_it_is_opened(lossless):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), RED).save(buffer, "WEBP", lossless=lossless)
    data = bytearray(buffer.getvalue())
    assert decode(bytes(data)).size == (8, 8)
    place = data.index(b"VP8")
    if lossless:
        assert data[place : place + 4] == b"VP8L"
        data[place + 9 : place + 13] = (0x3FFF | 0x3FFF << 14).to_bytes(4, "little")
    else:
        data[place + 14 : place + 18] = b"\xff\x3f\xff\x3f"
    with pytest.raises(PictureError, match=r"would take 4\.3 GB"):
        decode(bytes(data))


def test_files_that_are_too_large_are_not_read(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # a hole: nothing is written
    with pytest.raises(PictureError, match="more than the"):
        decode(tmp_path / "large.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path):
    """Before: a pipe called .png was waited for until somebody wrote into it."""
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", "/dev/zero"):
        script = f"from pathlib import Path; from sgoif.pictures.decode import decode; decode(Path({str(path)!r}))"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=bare(), timeout=60)
        assert "PictureError: it is no regular file" in done.stderr


def test_decoding_leaves_warnings_and_pillow_as_they_were():
    """Filters of warnings are the process's: set in one thread and put back in another, they stayed changed."""
    before, most = list(warnings.filters), Image.MAX_IMAGE_PIXELS
    data = png(size=(64, 64))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [data] * 400))
    assert warnings.filters == before and most == Image.MAX_IMAGE_PIXELS


def test_deep_pictures_are_windowed_band_by_band_as_a_whole():
    values = np.random.default_rng(0).integers(0, 60_000, (700, 40)).astype(np.uint16)
    low, high = np.percentile(values, [1, 99])
    whole = (255 * np.clip((values - low) / (high - low), 0, 1)).astype(np.uint8)
    assert np.array_equal(apply_window(values), whole)
