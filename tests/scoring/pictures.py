"""Small real pictures of three colours, some with the wrong label, kept in every form; a model trained on them."""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import sgoif

NAMES = ("red", "green", "blue")
SIDE = 8


class ColourNet(nn.Module):
    """A convolution and a head; takes pictures as they are."""

    input_size = SIDE

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, len(NAMES))

    def forward(self, x):
        return self.head(F.relu(self.body(x)).mean((2, 3)))


@dataclass
class Pictures:
    """Pixels ``[N, S, S, 3]``, given labels and which of them are wrong."""

    pixels: np.ndarray
    given: np.ndarray
    wrong: np.ndarray

    @classmethod
    def draw(cls, count, seed=0, share=0.1):
        rng = np.random.default_rng(seed)
        truth = np.arange(count) % 3
        pixels = rng.integers(0, 120, (count, SIDE, SIDE, 3))
        pixels[np.arange(count), :, :, truth] += rng.integers(40, 130, (count, 1, 1))
        wrong = rng.random(count) < share
        return cls(pixels.astype(np.uint8), np.where(wrong, (truth + 1) % 3, truth), wrong)

    def inputs(self):
        return torch.from_numpy(self.pixels).permute(0, 3, 1, 2).float().div(255)

    def encoded(self):
        for pixels in self.pixels:
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, "PNG")
            yield out.getvalue()


@dataclass
class Trained:
    """A finished training: the model, the run of its audit, and where the snapshot lies."""

    model: ColourNet
    audit: sgoif.Run
    snapshot: str
    train: Pictures


def train_and_audit(folder: Path) -> Trained:
    torch.manual_seed(0)
    train, held, model = Pictures.draw(300), Pictures.draw(90, seed=1, share=0), ColourNet()
    optimizer, labels = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), torch.from_numpy(train.given)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(train.inputs()), labels).backward()
        optimizer.step()
    path = str(folder / "snapshot.safetensors")
    run = sgoif.audit(
        model,
        (train.inputs(), labels),
        anchors=(held.inputs(), torch.from_numpy(held.given)),
        trusted=True,
        snapshot=path,
        class_names=NAMES,
    )
    return Trained(model, run, path, train)


def as_parquet(pictures, folder, files=3, ids=True, broken=()):
    """Parquet files with int ids; some pictures are no pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    encoded = [b"no picture" if i in broken else data for i, data in enumerate(pictures.encoded())]
    for number, rows in enumerate(np.array_split(np.arange(len(encoded)), files)):
        columns = {"image": [encoded[i] for i in rows], "label": [int(pictures.given[i]) for i in rows]}
        columns |= {"id": [int(i) for i in rows]} if ids else {}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", row_group_size=40)
    return str(folder)


def as_shards(pictures, folder, shards=2):
    """Tar shards, with class numbers in ``.cls``."""
    folder.mkdir(parents=True, exist_ok=True)
    encoded = list(pictures.encoded())
    for number, rows in enumerate(np.array_split(np.arange(len(encoded)), shards)):
        with tarfile.open(folder / f"shard-{number}.tar", "w") as tar:
            for i in rows:
                for suffix, data in (("png", encoded[i]), ("cls", str(pictures.given[i]).encode())):
                    info = tarfile.TarInfo(f"{i:05d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return str(folder)


def as_folder(pictures, folder):
    """Class folders."""
    for i, data in enumerate(pictures.encoded()):
        path = folder / NAMES[pictures.given[i]] / f"{i:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(folder)
