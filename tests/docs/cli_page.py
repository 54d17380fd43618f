"""Prints the outputs that docs/cli.md shows anew: ``python -m tests.docs.cli_page FOLDER``.

Real digits of scikit-learn in class folders, with some labels wrong as people get them wrong and some at random.
"""

import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from sgoif.review.verify import read_lists
from tests.cli.runs import invoke

ALIKE = {1: 7, 3: 8, 4: 9, 9: 4}  # what is given for what, now and then
COMMANDS = (
    "scan photos --features emb.npy --out runs/first",
    "issues runs/first --top 5",
    "issues runs/first --by annotator --table sources.csv",
    "classes runs/first",
    "info runs/first",
    "verify runs/first --page check.html --images photos",
    "verify runs/first --verdicts verdicts.csv",
    "check runs/first --max-error-rate 20%",
    "check runs/first --max-error-rate 10%",
    "holdout runs/first --size 150 --out verify.csv",
    "scan fixed --features fixed.npy --out runs/fixed",
    "compare runs/first runs/fixed --top 5",
)


def make(folder):
    """Write pictures, embeddings and sources; returns true and given labels by the name of the file."""
    digits, rng = load_digits(), np.random.default_rng(0)
    true = digits.target
    given = np.where(rng.random(len(true)) < 0.05, rng.integers(0, 10, len(true)), true)
    mixed = np.array([ALIKE.get(int(label), int(label)) for label in true])
    given = np.where(rng.random(len(true)) < 0.15, mixed, given)
    names = [f"{label}/{i:04d}.png" for i, label in enumerate(given)]
    write(folder / "photos", folder / "emb.npy", names, digits)
    (folder / "sources.csv").write_text(
        "id,annotator\n" + "".join(f"{name},{'anna' if i % 5 < 2 else 'ben'}\n" for i, name in enumerate(names))
    )
    return digits, dict(zip(names, true.tolist(), strict=True))


def write(place, features, names, digits):
    for name in names:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[int(path.stem)] * 255 / 16).astype(np.uint8)).save(path)
    order = [int(Path(name).stem) for name in sorted(names)]  # as a scan lists them
    np.save(features, digits.data[order].astype(np.float32))


def main(folder):
    folder.mkdir(parents=True)
    os.chdir(folder)
    digits, truth = make(folder)
    wrong = sum(int(name.split("/")[0]) != label for name, label in truth.items())
    print(f"{len(truth)} pictures, {wrong} labels wrong")
    for line in COMMANDS:
        if line.startswith("scan fixed"):
            move_wrong(folder, digits, truth)
        if line.endswith("verdicts.csv"):
            check_labels(truth)
        done = invoke(*line.split())
        print(f"$ sgoif {line}\n{done.stdout}{done.stderr if done.exit_code == 2 else ''}", flush=True)


def check_labels(truth):
    """Say of the sample what a person who knows would say."""
    (found,) = read_lists("runs/first")
    rows = [
        f"{card.id},{card.given_label},{'keep' if truth[card.id] == card.given_label else 'none'}"
        for card in found.cards
    ]
    head = "id,given_label,decision,list"
    Path("verdicts.csv").write_text("\n".join([head, *(f"{row},{found.list_id}" for row in rows), ""]))


def move_wrong(folder, digits, truth):
    """Move the wrong ones of the first 200 labels to their true classes."""
    import sgoif

    first = [str(name) for name in sgoif.load("runs/first").label_issues(top=200)["id"].to_pylist()]
    found = {name for name in first if int(name.split("/")[0]) != truth[name]}
    hundred = sum(name in found for name in first[:100])
    print(f"of the first 100 labels {hundred} are wrong, of the first 200 {len(found)}")
    names = [f"{truth[name]}/{Path(name).name}" if name in found else name for name in truth]
    write(folder / "fixed", folder / "fixed.npy", names, digits)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
