"""The outputs that docs/cli.md shows: ``python -m tests.docs.cli_page`` makes them and writes them into the page.

Real digits of scikit-learn in class folders, with some labels wrong as people get them wrong and some at random.
Commands about ``runs/first`` and ``runs/fixed`` are run in the order of the page, and so is ``head``. Outputs of other
commands stay as they are: they need CIFAR-10 or a model, or show the machine.
"""

import os
import re
import shlex
import sys
import tempfile
import textwrap
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from sgoif.review.verify import read_lists
from tests.cli.runs import invoke

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
ALIKE = {1: 7, 3: 8, 4: 9, 9: 4}  # what is given for what, now and then
WIDTH = 100  # of prose; tables and commands are not wrapped
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.S | re.M)
SHOWN = re.compile(r"\bruns/(first|fixed)\b|^\$ head ")  # commands whose outputs are made anew
PIECE = re.compile(r"^\$ .*\n(?:(?!\$ ).*\n)*", re.M)


def rewrite(page, folder):
    """The page with the outputs that its commands give now; ``folder`` is an empty one to work in."""
    with working_in(folder):
        digits, truth = make(folder)
        wrong = sum(int(name.split("/")[0]) != label for name, label in truth.items())
        print(f"{len(truth)} pictures, {wrong} labels wrong", file=sys.stderr)

        def answer(piece):
            command = piece[0].partition("\n")[0]
            if not SHOWN.search(command):
                return piece[0]
            return f"{command}\n{run(command.removeprefix('$ '), folder, digits, truth)}"

        return BLOCK.sub(lambda block: PIECE.sub(answer, block[0]), page)


@contextmanager
def working_in(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run(command, folder, digits, truth):
    """The output of a command, after what a person would have done before it."""
    program, *words = shlex.split(command)
    if program == "head":
        _, number, name = words
        return "\n".join(Path(name).read_text().splitlines()[: int(number)]) + "\n"
    if "--verdicts" in words:
        write_verdicts("runs/first", truth)
    if "--filled" in words:
        fill_in(Path(words[words.index("--filled") + 1]), truth)
    if "runs/fixed" in words:
        move_wrong(folder, digits, truth)
        invoke("scan", "fixed", "--features", "fixed.npy", "--out", "runs/fixed")
    done = invoke(*words)
    assert done.exit_code in ((0, 1, 2) if words[0] == "check" else (0,)), (command, done.stderr)
    return wrap(done.stdout + (done.stderr if done.exit_code == 2 else ""))


def wrap(output):
    """Long prose on several lines; what has columns or is indented stays as it is."""
    lines = []
    for line in output.splitlines():
        lines += [line] if "  " in line or len(line) <= WIDTH else textwrap.wrap(line, WIDTH, break_long_words=False)
    return "\n".join(lines) + "\n"


def mask(page):
    """The outputs without what may differ between machines: numbers, their spacing, versions, hardware."""
    found = []
    for block in BLOCK.findall(page):
        text = re.sub(r"^(versions|hardware|created) .*(\n +.*)*", "", block, flags=re.M)
        found.append(re.sub(r"\d[\d,.]*", "0", text).split())
    return found


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


def write_verdicts(url, truth=None):
    """Say of the samples of a run what a person who knows would say, or that all labels are right."""
    rows = ["id,given_label,decision,list"]
    for found in read_lists(url):
        for card in found.cards:
            is_right = truth is None or truth[card.id] == card.given_label
            rows.append(f"{card.id},{card.given_label},{'keep' if is_right else 'none'},{found.list_id}")
    Path("verdicts.csv").write_text("\n".join([*rows, ""]))


def fill_in(path, truth):
    """Fill in the true class of every example of the list, given as names of files."""
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *(f"{row}{truth[row.split(',')[0]]}" for row in rows), ""]))


def move_wrong(folder, digits, truth):
    """Move the wrong ones of the first 200 labels to their true classes."""
    import sgoif

    first = [str(name) for name in sgoif.load("runs/first").label_issues(top=200)["id"].to_pylist()]
    found = {name for name in first if int(name.split("/")[0]) != truth[name]}
    hundred = sum(name in found for name in first[:100])
    print(f"of the first 100 labels {hundred} are wrong, of the first 200 {len(found)}", file=sys.stderr)
    names = [f"{truth[name]}/{Path(name).name}" if name in found else name for name in truth]
    write(folder / "fixed", folder / "fixed.npy", names, digits)


def main():
    with tempfile.TemporaryDirectory() as folder:
        page = rewrite(PAGE.read_text(), Path(folder))
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
