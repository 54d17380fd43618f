"""Tar shards as WebDataset keeps them: by shard and key, walked once, never unpacked."""

import io
import tarfile

import fsspec
import pytest

from sgoif.errors import SgoifError
from sgoif.sources import find_pictures
from sgoif.sources.shards import ShardPictures, find_members, read_samples
from tests.pictures.files import encoded, picture
from tests.sources.test_places import seed_of


def write_shard(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three shards with keys 0000 to 0009 in each, and some names of their own."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        members = []
        for key in range(10):
            members += [(f"{key:04}.cls", b"3"), (f"{key:04}.png", encoded(picture(10 * shard + key)))]
        if shard == 1:
            members += [("./dir.d/only ü.mask.png", encoded(picture(38))), ("./dir.d/only ü.PNG", encoded(picture(39)))]
            members += [("words.txt", b"no picture"), ("deep." + "x" * 200 + ".png", encoded(picture(37)))]
        write_shard(folder / f"train-{shard:03}.tar", members)
    return folder


@pytest.mark.parametrize("pattern", ["", "/*.tar", "/train-{000..002}.tar", "/train-{000,00[12]}.tar"])
def test_ids_are_shard_and_key(shards, pattern):
    found = find_pictures(f"{shards}{pattern}")
    assert found.about == "3 tar shards" and found.link("train-000/0001") is None
    asked = ["train-002/0007", "train-000.tar/0000", "train-001/none", "train-000/0009", "train-002.tar/0007", "x/0001"]
    values = list(found.read(asked))
    assert [value is None for value in values] == [False, False, True, False, False, True]
    assert [seed_of(value) for value in values if value is not None] == [27, 0, 9, 27]
    assert found.num_failed == 2 and "is in no shard" in found.last_error


def test_a_key_alone_where_it_is_unique(shards):
    found = find_pictures(shards)
    values = list(found.read(["dir.d/only ü", "0003", "words", "deep", "train-001/dir.d/only ü"]))
    assert [None if value is None else seed_of(value) for value in values] == [39, None, None, 37, 39]
    assert list(found.read(["0003"])) == [None]
    assert found.last_error == "the picture '0003' is in 'train-000' and 'train-001'; use shard/key."
    alone = find_pictures(shards / "train-001.tar").read(["0003", "train-001/0003"])
    assert [seed_of(value) for value in alone] == [13, 13]


def test_a_shard_is_walked_once_and_no_further_than_needed(shards):
    opened = []

    def open_shard(path):
        opened.append(path)
        return open(path, "rb")

    paths = sorted(map(str, shards.glob("*.tar")))
    found = ShardPictures(paths, open_shard)
    list(found.read([f"train-001/{key:04}" for key in (5, 1, 3)]))
    assert opened == [paths[1]] * 4  # a walk, and a reading each
    list(found.read(["train-001/0005"]))
    assert opened == [paths[1]] * 5  # its place is known
    with open(paths[0], "rb") as file:
        assert [key for key, _, _ in find_members(file, {"0000", "0001"}, to_the_end=False)] == ["0000", "0001"]
        assert file.tell() < 0.5 * len((shards / "train-000.tar").read_bytes())


def test_a_shard_that_is_cut_gives_what_it_has(shards, tmp_path):
    whole = (shards / "train-000.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 3])
    (tmp_path / "none.tar").write_bytes(b"")
    (tmp_path / "text.tar").write_bytes(b"no tar at all" * 100)
    found = find_pictures(tmp_path)
    values = list(found.read(["cut/0000", "cut/0009", "none/0000", "text/0000"]))
    assert seed_of(values[0]) == 0 and values[1:] == [None] * 3
    assert found.num_failed == 3
    assert found.last_error.startswith(
        "the picture 'text/0000' was not found in 'text', which cannot be read to its end"
    )


def test_names_that_lead_out_are_only_names(tmp_path):
    write_shard(tmp_path / "a.tar", [("../../evil.png", encoded(picture(1))), ("/etc/b.png", encoded(picture(2)))])
    link = tarfile.TarInfo("link.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        tar.addfile(link)
    found = find_pictures(tmp_path)
    evil, absolute, linked = found.read(["a/../../evil", "a//etc/b", "a/link"])
    assert (seed_of(evil), seed_of(absolute), linked) == (1, 2, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar"]


def test_shards_behind_a_url(shards):
    fs = fsspec.filesystem("memory")
    for path in shards.glob("*.tar"):
        fs.pipe_file(f"/shards/{path.name}", path.read_bytes())
    for pattern in ("memory://shards/*.tar", "memory://shards/train-{000..002}.tar"):
        assert [seed_of(value) for value in find_pictures(pattern).read(["train-002/0001", "dir.d/only ü"])] == [21, 39]
    with pytest.raises(SgoifError, match="no shard"):
        find_pictures("memory://shards/none-*.tar")


def test_shards_of_one_name_are_refused_and_an_archive_beside_folders_is_none(shards, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder / "0.tar", [("x.png", encoded(picture()))])
    with pytest.raises(SgoifError, match="two shards are called '0'"):
        find_pictures(f"{tmp_path}/*/0.tar")
    write_shard(tmp_path / "backup.tar", [])
    assert find_pictures(tmp_path).about.startswith("the folder")


def test_keys_are_those_of_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset")
    names = ["a.png", "b.left.png", "dir/c.PNG", "dir.d/e.f.jpg", "sp ace.jpeg"]
    with webdataset.TarWriter(str(tmp_path / "x.tar")) as writer:
        for seed, name in enumerate(names):
            key, extension = webdataset.tariterators.base_plus_ext(name)
            writer.write({"__key__": key, extension: encoded(picture(seed))})
    keys = [example["__key__"] for example in webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False)]
    assert len(keys) == len(names)
    assert [seed_of(value) for value in find_pictures(tmp_path).read([f"x/{key}" for key in keys])] == [0, 1, 2, 3, 4]


def test_samples_are_read_from_end_to_end_with_their_labels(tmp_path):
    shown = encoded(picture(1))
    members = [("a.png", shown), ("a.cls", b"3\n"), ("b.json", b'{"label": "cat"}'), ("b.mask.png", b"mask")]
    members += [("b.PNG", shown), ("c.cls", b"1"), ("d.png", shown), ("d.json", b"[broken")]
    write_shard(tmp_path / "s.tar", members)
    with open(tmp_path / "s.tar", "rb") as file:
        found = list(read_samples(file))
    assert [(item.key, item.label) for item in found] == [("a", "3"), ("b", "cat"), ("c", "1"), ("d", None)]
    assert [item.picture for item in found] == [shown, shown, None, shown]


def test_samples_before_a_break_are_read(tmp_path):
    write_shard(tmp_path / "s.tar", [(f"{i}.png", encoded(picture(i))) for i in range(6)])
    data, found = (tmp_path / "s.tar").read_bytes(), []
    with pytest.raises(tarfile.ReadError):
        for sample in read_samples(io.BytesIO(data[: len(data) // 2])):
            found.append(sample.key)
    assert 0 < len(found) < 6
