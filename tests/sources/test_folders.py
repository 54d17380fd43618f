"""Folders, here and behind URLs: pictures by their path, and nothing outside."""

import functools
import http.server
import os
import threading
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import fsspec
import numpy as np
import pytest

from benchmarks.s3 import local_s3
from sgoif.errors import SgoifError
from sgoif.pictures import displayed
from sgoif.sources import find_pictures
from tests.pictures.files import encoded, picture

NAMES = ["cat/1.png", "cat/ü '\"<b>&amp;.png", "dog/a b#c?d%20e.png", "dog/[1-3]*.png", "猫/x.png", "top.png"]
OUTSIDE = ["../secret.png", "cat/../../secret.png", "cat/../cat/1.png", "..", "", ".", "cat", "a\0b", "x" * 10_000]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "photos"
    for seed, name in enumerate(NAMES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded(picture(seed)))
    (root.parent / "secret.png").write_bytes(encoded(picture(99)))
    return root


def check_reads(found):
    """Every picture is found, in the order asked, missing ones as gaps."""
    asked = [NAMES[2], "no/such.png", *reversed(NAMES), NAMES[0]]
    seeds = [NAMES.index(name) if name in NAMES else None for name in asked]
    values = list(found.read(asked))
    assert [value is None for value in values] == [seed is None for seed in seeds]
    for value, seed in zip(values, seeds):
        if seed is not None:
            assert (np.asarray(displayed(value)) == np.asarray(picture(seed))).all()
    assert found.num_failed == 1 and "no/such.png" in found.last_error


@pytest.mark.parametrize("make", [str, lambda root: root, lambda root: root.as_uri(), os.path.relpath])
def test_a_folder(photos, make):
    found = find_pictures(make(photos))
    assert found.about == "the folder 'photos'"
    check_reads(found)
    for name in NAMES:
        assert urlsplit(found.link(name)).scheme == "file"
        with urlopen(found.link(name)) as answer:
            assert answer.read() == (photos / name).read_bytes()
    assert found.link("no/such.png") is None


def test_what_lies_outside_is_never_read(photos):
    asked = [*OUTSIDE, str(photos / NAMES[0]), str(photos.parent / "secret.png"), 3, np.int64(3)]
    found = find_pictures(photos)
    assert list(found.read(asked)) == [None] * len(asked)
    assert found.num_failed == len(asked) and len(found.last_error) <= 300
    assert [found.link(id) for id in asked] == [None] * len(asked)


@pytest.fixture(scope="module")
def bucket(photos):
    pytest.importorskip("moto", reason="needs moto[server], an S3 on this machine")
    pytest.importorskip("s3fs", reason="needs s3fs")
    with local_s3("pictures") as url:
        fs, root = fsspec.core.url_to_fs(url)
        for name in NAMES:
            fs.pipe_file(f"{root}/photos/{name}", (photos / name).read_bytes())
        fs.pipe_file(f"{root}/secret.png", (photos.parent / "secret.png").read_bytes())
        yield url


def test_a_folder_on_s3(bucket):
    found = find_pictures(f"{bucket}/photos/")
    assert found.about == f"the folder '{bucket}/photos'"
    values = list(found.read([*NAMES, "gone.png"] * 6))  # more than are fetched at once
    expected = [*range(len(NAMES)), None] * 6
    assert [value is None for value in values] == [seed is None for seed in expected]
    assert all(displayed(v).tobytes() == picture(s).tobytes() for v, s in zip(values, expected) if s is not None)
    assert found.num_failed == 6 and "FileNotFoundError" in found.last_error
    assert found.link(NAMES[0]) is None
    fs, root = fsspec.core.url_to_fs(bucket)
    fs.pipe_file(f"{root}/photos/cat//1.png", encoded(picture(7)))  # another key than cat/1.png
    assert displayed(next(found.read(["cat//1.png"]))).tobytes() == picture(7).tobytes()
    assert list(found.read(["../secret.png", "/secret.png", f"{bucket}/secret.png"])) == [None] * 3
    nowhere = find_pictures("s3://no-such-bucket/photos")
    assert list(nowhere.read(NAMES)) == [None] * len(NAMES) and nowhere.num_failed == len(NAMES)


@pytest.fixture(scope="module")
def server(photos):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(photos.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


def test_a_folder_on_the_web(server):
    found = find_pictures(f"{server}/photos")
    check_reads(found)
    for seed, name in enumerate(NAMES):
        assert unquote(urlsplit(found.link(name)).path) == f"/photos/{name}"
        with urlopen(found.link(name)) as answer:
            assert answer.read() == encoded(picture(seed))
    assert list(found.read(["../secret.png", "/secret.png", ""])) == [None] * 3
    assert found.link("../secret.png") is None


def test_secrets_of_a_url_are_not_shown(server):
    found = find_pictures("https://me:hunter2@example.org/photos")
    assert "hunter2" not in found.about and "hunter2" not in found.link("1.png")
    assert found.link("1.png") == "https://example.org/photos/1.png"
    found = find_pictures(server.replace("://", "://me:hunter2@") + "/photos")
    whole, gone = found.read([NAMES[0], "gone.png"])
    assert displayed(whole).size == (40, 30) and gone is None
    assert "gone.png" in found.last_error and "hunter2" not in found.last_error
    with pytest.raises(SgoifError, match="pass a function") as raised:
        find_pictures("https://example.org/photos?token=hunter2")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(SgoifError, match="nosuchthing"):
        find_pictures("nosuchthing://bucket/photos")
