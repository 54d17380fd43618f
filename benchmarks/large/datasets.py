"""The large datasets, read from the folders that their authors publish; a picture is decoded when it is asked for.

Every dataset has a folder of its own below the root: ``imagenet``, ``webvision``, ``clothing1m``, ``food101n``,
``animal10n`` and ``openood``. The CIFAR sets come from :mod:`benchmarks.data`. An example's id is the path of its file
relative to the dataset's folder.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.data import DataMissing

if TYPE_CHECKING:
    from PIL.Image import Image

UNVERIFIED = -1  # nobody looked at this label
OTHER = -2  # people found the label wrong, and did not say which class is right
OUTSIDE = -1  # the label of a picture of no class, in OpenOOD's lists
MINI_CLASSES = 50  # of WebVision

ANIMALS = (
    *("cat", "lynx", "wolf", "coyote", "cheetah"),
    *("jaguar", "chimpanzee", "orangutan", "hamster", "guinea pig"),
)
OPENOOD_SETS: Mapping[str, str] = {  # the folder of each list's pictures
    "val_imagenet": "images_largescale",
    "test_imagenet": "images_largescale",
    "test_ssb_hard": "images_largescale",
    "test_ninco": "images_largescale",
    "test_inaturalist": "images_largescale",
    "test_textures": "images_classic",
    "test_openimage_o": "images_largescale",
}


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures on disk: an item is the decoded picture, the given label and the id."""

    folder: Path
    ids: NDArray[np.str_]  # [N], files below the folder
    given: NDArray[np.int64]  # [N]
    clean: NDArray[np.int64]  # [N], the verified label, UNVERIFIED or OTHER
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, position: int) -> tuple[Image, int, str]:
        return self.read(position), int(self.given[position]), str(self.ids[position])

    def read(self, position: int) -> Image:
        """Decode one picture."""
        from PIL import Image

        path = self.folder / self.ids[position]
        if not path.is_file():
            raise DataMissing(f"'{path}' is missing; the lists of the dataset name it as one of its pictures")
        with Image.open(path) as picture:
            return picture.convert("RGB")

    @property
    def is_verified(self) -> NDArray[np.bool_]:
        return self.clean != UNVERIFIED

    @property
    def is_wrong(self) -> NDArray[np.bool_]:
        """Whether the given label is known to be wrong."""
        return self.is_verified & (self.clean != self.given)

    def take(self, positions: NDArray[np.integer] | slice) -> Pictures:
        """Select by position, keeping the ids."""
        return replace(self, ids=self.ids[positions], given=self.given[positions], clean=self.clean[positions])


@dataclass(frozen=True, slots=True)
class Stored(Pictures):
    """Pictures that are decoded already, as those of CIFAR are."""

    pixels: NDArray[np.uint8]  # of the whole split; an id is a position in it

    def read(self, position: int) -> Image:
        from PIL import Image

        return Image.fromarray(self.pixels[int(self.ids[position])])


def large_root(named: str | Path | None = None) -> Path:
    """Find the folder that holds the datasets: the one that is named, else ``SGOIF_LARGE``."""
    found = named or os.environ.get("SGOIF_LARGE")
    if not found:
        raise DataMissing(
            "no large data: set SGOIF_LARGE, or pass --root, to the folder that holds imagenet/ and others"
        )
    return Path(found)


def imagenet(root: Path, split: str = "train") -> Pictures:
    """Read ImageNet-1k, ``train`` or ``val``; a flat ``val`` folder needs ``LOC_val_solution.csv`` beside it."""
    _check_split(split, ("train", "val"))
    folder = root / "imagenet"
    wnids = _folders(folder / "train", "a folder for each class (train/<wnid>/*.JPEG)")
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    flat = sorted(path.name for path in folder.glob("val/*.JPEG")) if split == "val" else []
    if flat:
        solution = _file(
            folder / "LOC_val_solution.csv", "the class of each picture of a flat val/ (ImageId,PredictionString)"
        )
        with solution.open(newline="") as lines:
            classes = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(lines)}
        rows = [(f"val/{name}", numbers[classes[Path(name).stem]]) for name in flat]
    else:
        parts = _folders(folder / split, f"a folder for each class ({split}/<wnid>/*.JPEG)")
        rows = [(f"{split}/{wnid}/{name}", numbers[wnid]) for wnid in parts for name in _files(folder / split / wnid)]
    return _pictures(folder, rows, wnids)


def webvision(root: Path, split: str = "train", *, mini: bool = False) -> Pictures:
    """Read WebVision 1.0, ``train`` or ``val``; the mini subset is the first 50 classes, of Google's pictures alone."""
    _check_split(split, ("train", "val"))
    folder = root / "webvision"
    synsets = _lines(folder / "info" / "synsets.txt", "a line for each class (n01440764 tench, Tinca tinca)")
    names = [line.partition(" ")[2] or line for line in synsets]
    sources = ("google",) if mini else ("google", "flickr")
    lists = ["val_filelist"] if split == "val" else [f"train_filelist_{source}" for source in sources]
    rows = []
    for name in lists:
        listed = _listed(folder / "info" / f"{name}.txt", "a line for each picture (google/q0001/xxx.jpg 0)")
        rows += [(f"val_images_256/{path}" if split == "val" else path, int(label)) for path, label in listed]
    if mini:
        rows, names = [row for row in rows if row[1] < MINI_CLASSES], names[:MINI_CLASSES]
    return _pictures(folder, rows, names)


def clothing1m(root: Path, split: str = "train") -> Pictures:
    """Read Clothing1M.

    ``train`` is the noisy pictures and those of the clean training list that have a noisy label too, all labelled as
    given; ``verified`` is every picture with both labels. ``clean_train``, ``val`` and ``test`` have clean labels.
    """
    _check_split(split, ("train", "verified", "clean_train", "val", "test"))
    folder = root / "clothing1m"
    names = _lines(folder / "category_names_eng.txt", "the name of each class, a line each")
    noisy, clean = (
        {
            path: int(label)
            for path, label in _listed(folder / f"{kind}_label_kv.txt", f"the {kind} labels (images/0/0/xxx.jpg 5)")
        }
        for kind in ("noisy", "clean")
    )
    if split == "verified":
        keys = [key for key in noisy if key in clean]
    else:
        of_clean = _lines(
            folder / f"clean_{split.removeprefix('clean_')}_key_list.txt", "the pictures of a clean split, a line each"
        )
        if split != "train":
            return _pictures(folder, [(key, clean[key]) for key in of_clean], names, clean)
        listed = _lines(folder / "noisy_train_key_list.txt", "the pictures with noisy labels, a line each")
        keys = list(dict.fromkeys([*listed, *(key for key in of_clean if key in noisy)]))
    return _pictures(folder, [(key, noisy[key]) for key in keys], names, clean)


def food101n(root: Path, split: str = "train") -> Pictures:
    """Read Food-101N: ``train`` is the list of pictures without those verified for validation, ``val`` is the latter.

    Verification says whether a label is right, not which label would be.
    """
    _check_split(split, ("train", "val"))
    folder = root / "food101n"
    names = [line for line in _lines(folder / "meta" / "classes.txt", "the name of each class") if line != "class_name"]
    numbers = {name: number for number, name in enumerate(names)}
    verdicts = {name: _verdicts(folder / "meta" / f"verified_{name}.tsv") for name in ("train", "val")}
    listed: Iterable[str] = verdicts["val"]
    if split == "train":
        lines = _lines(folder / "meta" / "imagelist.tsv", "the pictures, a line each (apple_pie/xxx.jpg)")
        listed = [line for line in lines if not line.startswith("class_name") and line not in verdicts["val"]]
    rows = [(f"images/{key}", numbers[key.partition("/")[0]]) for key in listed]
    clean = {
        f"images/{key}": numbers[key.partition("/")[0]] if is_right else OTHER
        for key, is_right in verdicts[split].items()
    }
    return _pictures(folder, rows, names, clean)


def animal10n(root: Path, split: str = "train") -> Pictures:
    """Read ANIMAL-10N, ``train`` or ``test``: a file's name begins with its label."""
    _check_split(split, ("train", "test"))
    folder, part = root / "animal10n", {"train": "training", "test": "testing"}[split]
    names = _files(folder / part, f"the pictures ({part}/<label>_<id>.jpg)")
    return _pictures(folder, [(f"{part}/{name}", int(name.partition("_")[0])) for name in names], ANIMALS)


def openood(root: Path, name: str) -> Pictures:
    """Read one of OpenOOD's lists for ImageNet, by its name; pictures of no class have the label ``OUTSIDE``."""
    _check_split(name, tuple(OPENOOD_SETS))
    folder = root / "openood"
    path = folder / "benchmark_imglist" / "imagenet" / f"{name}.txt"
    listed = _listed(path, "a line for each picture (path label, -1 outside)")
    rows = [(f"{OPENOOD_SETS[name]}/{file}", int(label)) for file, label in listed]
    return _pictures(folder, rows, [f"class {number}" for number in range(1000)])


def cifar(name: str, split: str = "train") -> Pictures:
    """Take CIFAR-10 or CIFAR-100 from :mod:`benchmarks.data`, with the published labels as given and verified ones."""
    images = {"cifar10": data.cifar10, "cifar100": data.cifar100}[name](split)
    ids = images.ids.astype(str)
    return Stored(Path(name), ids, images.labels, images.labels, images.class_names, pixels=images.pixels)


def _pictures(
    folder: Path, rows: Sequence[tuple[str, int]], names: Sequence[str], clean: Mapping[str, int] | None = None
) -> Pictures:
    if not rows:
        raise DataMissing(f"the lists in '{folder}' name no picture")
    verified = clean or {}
    return Pictures(
        folder,
        np.array([path for path, _ in rows]),
        np.array([label for _, label in rows], dtype=np.int64),
        np.array([verified.get(path, UNVERIFIED) for path, _ in rows], dtype=np.int64),
        tuple(names),
    )


def _check_split(split: str, known: tuple[str, ...]) -> None:
    if split not in known:
        raise ValueError(f"must be one of {', '.join(known)}, got {split!r}")


def _file(path: Path, holds: str) -> Path:
    if not path.is_file():
        raise DataMissing(f"'{path}' is missing; it holds {holds}")
    return path


def _lines(path: Path, holds: str) -> list[str]:
    return [line.strip() for line in _file(path, holds).read_text().splitlines() if line.strip()]


def _listed(path: Path, holds: str) -> list[list[str]]:
    """Lines of a path and a label, which a path's own blanks do not confuse."""
    return [line.rsplit(maxsplit=1) for line in _lines(path, holds)]


def _verdicts(path: Path) -> dict[str, bool]:
    rows = (
        line.split("\t") for line in _lines(path, "what people said of pictures (class_name/key, verification_label)")
    )
    return {row[0]: row[1] == "1" for row in rows if not row[0].startswith("class_name")}


def _folders(path: Path, holds: str) -> list[str]:
    found = sorted(entry.name for entry in os.scandir(path) if entry.is_dir()) if path.is_dir() else []
    if not found:
        raise DataMissing(f"'{path}' is missing or empty; it holds {holds}")
    return found


def _files(path: Path, holds: str = "pictures") -> list[str]:
    if not path.is_dir():
        raise DataMissing(f"'{path}' is missing; it holds {holds}")
    return sorted(entry.name for entry in os.scandir(path) if entry.name.lower().endswith((".jpg", ".jpeg")))


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a dataset without reading it: how it is loaded, and the size that was published."""

    load: Callable[[Path, str], Pictures]
    held: str  # the split that a trusted hold-out is taken from
    test: str  # the split that accuracy is measured on, without the hold-out
    pictures: int  # to train on
    classes: int
    is_clean: bool = False  # whether the published labels count as right


DATASETS: Mapping[str, Known] = {
    "imagenet": Known(imagenet, "val", "val", 1_281_167, 1000, is_clean=True),
    "webvision": Known(webvision, "val", "val", 2_439_574, 1000),
    "webvision-mini": Known(lambda root, split: webvision(root, split, mini=True), "val", "val", 65_944, MINI_CLASSES),
    "clothing1m": Known(clothing1m, "val", "test", 1_024_637, 14),
    "food101n": Known(food101n, "val", "val", 305_268, 101),
    "animal10n": Known(animal10n, "test", "test", 50_000, 10),
    "cifar10": Known(lambda root, split: cifar("cifar10", split), "test", "test", 50_000, 10, is_clean=True),
    "cifar100": Known(lambda root, split: cifar("cifar100", split), "test", "test", 50_000, 100, is_clean=True),
}
