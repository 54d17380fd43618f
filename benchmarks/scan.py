"""``sgoif scan`` as a new user runs it: ``python -m benchmarks.scan``.

5,000 CIFAR-10 images outside development, 20% of their labels flipped between look-alike classes, written as PNG files
into one folder per given class. The command line is called with the folder and nothing else, and once more with a
frozen backbone; of its first 100 findings so many are true errors, and it took so long. `margin` is what the networks'
own margins, which need no hold-out, would have put first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import sgoif
from benchmarks import data, noise
from benchmarks.metrics import average_precision
from benchmarks.records import append_result

TOP = 100
_NOT_A_NEW_USERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH")
PATHS = {"scratch": [], "frozen": ["--backbone", "benchmarks.frozen:backbone"]}


def write_folder(folder: Path, setting: str, seed: int, examples: int) -> dict[str, bool]:
    """Write the pictures, and tell which paths hold a wrong label."""
    images = data.reported(examples, seed).train
    given = noise.apply(setting, images.labels, seed=seed, ids=images.ids)
    wrong = {}
    for pixels, true, label, number in zip(images.pixels, images.labels, given, images.ids, strict=True):
        name = f"{images.class_names[label]}/{number:05d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)
        wrong[name] = bool(true != label)
    return wrong


def scan(folder: Path, out: Path, options: list[str], python: str, threads: int | None) -> float:
    """Run the command line in a process of its own; returns the seconds it took."""
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_A_NEW_USERS}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    started = time.perf_counter()
    subprocess.run(
        [python, "-m", "sgoif.cli.main", "scan", str(folder), "--out", str(out), *options],
        check=True,
        cwd=Path(__file__).resolve().parents[1],  # where the backbone is found
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


def examine(path: str, setting: str, seed: int, examples: int, python: str, threads: int | None) -> dict[str, Any]:
    """Write, scan, and compare with the truth."""
    with tempfile.TemporaryDirectory() as place:
        wrong = write_folder(Path(place) / "photos", setting, seed, examples)
        seconds = scan(Path(place) / "photos", Path(place) / "run", PATHS[path], python, threads)
        run = sgoif.load(Path(place) / "run")
        table = run.label_issues().to_pydict()
        hits = np.array([wrong[name] for name in table["id"]])  # most suspicious first, hold-out examples among them
        own = np.array([wrong[name] for name in run.table["id"].tolist()])
        return {
            "seconds": seconds,
            "top_100": int(hits[:TOP].sum()),
            "ap": 100 * average_precision(-np.arange(len(hits)), hits),
            "margin_top_100": _found(-run.table["margin"], own),
            "worst_top_100": _found(run.table["worst"], own),
            "expected_errors": run.info.get("expected_errors"),
            "true_errors": int(own.sum()),
            "num_duplicates": len(run.duplicates()),
        }


def _found(scores: NDArray[np.float64], wrong: NDArray[np.bool_]) -> int:
    return int(wrong[np.argsort(-np.nan_to_num(scores))[:TOP]].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paths", nargs="+", choices=sorted(PATHS), default=sorted(PATHS))
    parser.add_argument("--setting", default="pair-20")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--examples", type=int, default=5_000)
    parser.add_argument("--python", default=sys.executable, help="of an environment that has sgoif installed")
    parser.add_argument("--threads", type=int, help="of the scan; as many as there are cores by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    for path in options.paths:
        for seed in map(int, options.seeds.split(",")):
            found = examine(path, options.setting, seed, options.examples, options.python, options.threads)
            settings = {"path": path, "setting": options.setting, "examples": options.examples}
            if options.save:
                append_result(options.save, {"benchmark": "scan", "settings": settings, "seed": seed, **found})
            line = f"{path}, {options.setting}, seed {seed}: {found['top_100']} of {TOP} (margin "
            line += f"{found['margin_top_100']}, worst {found['worst_top_100']}), AP {found['ap']:.1f}, "
            print(json.dumps(found) if options.json else f"{line}{found['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
