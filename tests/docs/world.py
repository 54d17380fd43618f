"""What a reader of the documentation has at hand: pictures in class folders, embeddings, shards, a model, decisions."""

import io
import runpy
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset

import sgoif
from sgoif.review.decisions import write_decisions
from tests.cli.runs import invoke

ROOT = Path(__file__).resolve().parents[2]
NUM_PICTURES, NUM_SPOILT = 400, 40
MODELS = """
import numpy as np
import torch

def small():
    pooled = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *pooled, torch.nn.Linear(8, 10))

def load_last():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1024, 10),
    )
    model.load_state_dict(torch.load("last.pt"))
    model.transform = lambda picture: torch.tensor(np.asarray(picture))[None, ..., 0].float() / 255
    return model
"""


def make(folder: Path) -> Dataset:
    """Put everything there and return the pictures as a dataset; digits are real and come with scikit-learn."""
    digits, rng = load_digits(), np.random.default_rng(0)
    true = digits.target[:NUM_PICTURES]
    given = np.where(rng.permutation(NUM_PICTURES) < NUM_SPOILT, (true + 1) % 10, true)
    names = [f"{label}/{i:04d}.png" for i, label in enumerate(given)]
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "train-000.tar", "w") as shard:
        for name, pixels, label in zip(names, digits.images, given):
            file = io.BytesIO()
            Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(file, "PNG")
            path = folder / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.getvalue())
            _add(shard, f"{path.stem}.png", file.getvalue())
            _add(shard, f"{path.stem}.cls", str(label).encode())
    (folder / "bucket").mkdir()
    shutil.copytree(folder / "photos", folder / "bucket" / "photos")
    encoded = [(folder / "photos" / name).read_bytes() for name in names]
    pq.write_table(pa.table({"id": names, "image": encoded, "label": given}), folder / "train.parquet")
    (folder / "mydata.py").write_text("def picture_of(id):\n    return f'photos/{id}'\n")
    order = np.argsort(names)  # as a scan lists them
    np.save(folder / "emb.npy", digits.data[:NUM_PICTURES][order].astype(np.float32))
    shutil.copy(folder / "emb.npy", folder / "embeddings.npy")
    sources = "".join(f"{name},{'anna' if i % 2 else 'ben'}\n" for i, name in enumerate(names))
    (folder / "sources.csv").write_text("id,annotator\n" + sources)
    (folder / "mymodel.py").write_text(MODELS)
    _scan(folder, dict(zip(names, true.astype(str))))
    pixels = torch.tensor(digits.images[:NUM_PICTURES]).float()[:, None] / 16
    return sgoif.with_ids(TensorDataset(pixels, torch.tensor(given)), ids=names)


def _add(shard: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    shard.addfile(entry, io.BytesIO(data))


def _scan(folder: Path, truth: dict[str, str]) -> None:
    """Runs that the pages speak of, and what a person decided on one of them."""
    photos, features = folder / "photos", folder / "emb.npy"
    done = invoke("scan", photos, "--features", features, "--out", folder / "runs" / "photos")
    assert done.exit_code == 0, done.stderr
    shutil.copytree(folder / "runs" / "photos", folder / "runs" / "fixed")
    run = sgoif.load(folder / "runs" / "photos")
    reviewer = runpy.run_path(str(ROOT / "examples" / "simulated_reviewer.py"))
    decisions = reviewer["decide"](run, truth, top=100, slips=0.05)
    for name in ("decisions", "decisions-ann", "decisions-bo", "decisions-cy"):
        write_decisions(decisions, str(folder / f"{name}.csv"))
