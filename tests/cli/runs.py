"""Runs whose answers are known, written by hand, and the command line to ask them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import typer.testing
from typer.testing import CliRunner

import sgoif
from sgoif.cli.main import app
from sgoif.review.verify import read_lists
from sgoif.store import ParquetSink

# the program is put together once: for every command it takes longer than most commands do
typer.testing._get_command = cache(typer.testing._get_command)

GOLDEN = Path(__file__).parent / "golden"
NAMES = ["cat", "dog", "bird", "fox"]
NASTY = ["<b>\"dog\"</b> & 'co'", "a|b`c*_[x](y)", "日本語\x1b[31m\n]]>", "snake\x00case\ufffe"]


def invoke(*args):
    """Run a command in this process: exit code, standard output, standard error."""
    done = _runner().invoke(app, [str(arg) for arg in args])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def _runner():
    try:
        return CliRunner(mix_stderr=False)  # click before 8.2 mixes the two streams by default
    except TypeError:
        return CliRunner()


def answer(*args):
    """The JSON document of a command that succeeds."""
    return json.loads(read_output(*args, "--json"))


def read_output(*args):
    """What a command prints that succeeds."""
    done = invoke(*args)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def read_refusal(*args):
    """What a command says on standard error that is refused, without line breaks."""
    done = invoke(*args)
    assert done.exit_code == 2, done.stdout + done.stderr
    return " ".join(done.stderr.split())


def command(*args):
    """The same as a command of its own."""
    return [sys.executable, "-m", "sgoif.cli.main", *map(str, args)]


def bare():
    """The environment of such a command."""
    return {**os.environ, "PYTHONPATH": str(Path(sgoif.__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}


def spawn(*args):
    """Run a command in a process of its own."""
    return subprocess.run(command(*args), capture_output=True, env=bare(), timeout=120, encoding="utf-8")


def document_of(page):
    """What a page knows."""
    return json.loads(Path(page).read_text(encoding="utf-8").split('id="document">')[1].split("</script>")[0])


def golden(name, text):
    """Compare a text with the one that was read and approved; SGOIF_UPDATE_GOLDEN=1 writes it anew."""
    path = GOLDEN / name
    if os.environ.get("SGOIF_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def table(p, given, suggested, ids=None, width=0.1, **columns):
    """Rows of ``examples`` with an interval of some width around ``p``."""
    p = np.asarray(p, float)
    count = len(p)
    found = {
        "id": np.array([f"img/{i:03d}.png" for i in range(count)]) if ids is None else np.asarray(ids),
        "given_label": np.asarray(given),
        "suggested_label": np.asarray(suggested),
        "suggested_label_2": np.full(count, -1),
        "suggested_label_3": np.full(count, -1),
        "suggested_share": np.full(count, 0.9),
        "p_mislabeled": p,
        "p_mislabeled_low": np.clip(p - width, 0, 1),
        "p_mislabeled_high": np.clip(p + width, 0, 1),
        "harm": np.ones(count),
        "worst": np.linspace(1, 2, count),
        "margin": -np.ones(count),
        "confidence": np.ones(count),
        "n_visits": np.full(count, 10),
    }
    return found | {name: np.asarray(column) for name, column in columns.items()}


def write_run(folder, examples, *, names=NAMES, holdout=None, is_finished=True, **facts):
    """Write a run of these tables and facts."""
    known = {"trusted": True, "class_names": list(names), "kind": "watch", "held_out_per_class": [50] * len(names)}
    sink = ParquetSink(folder, facts={**known, **facts})
    if examples is not None:
        sink.write_table("examples", examples)
    if holdout is not None:
        sink.write_table("holdout", holdout)
    if is_finished:
        sink.close()
    else:
        sink.checkpoint()
    return str(folder)


def noisy(rate_of_class=(0.3, 0.0, 0.0, 0.0), per_class=100, **options):
    """Examples of which a share of each class is surely wrong and the rest surely right."""
    p, given = [], []
    for label, rate in enumerate(rate_of_class):
        wrong = round(rate * per_class)
        p += [0.98] * wrong + [0.002] * (per_class - wrong)
        given += [label] * per_class
    given = np.array(given)
    return table(p, given, (given + 1) % len(rate_of_class), width=0.001, **options)


def without_probabilities(examples):
    """The same examples as a run has them that is not calibrated."""
    return {name: column for name, column in examples.items() if not name.startswith("p_mislabeled")}


def held_out(count=60, num_classes=4, trusted=False, ids=None):
    """A hold-out in which the first ones of each class are doubted most."""
    labels = np.arange(count) % num_classes
    return {
        "id": np.array([f"held/{i:03d}.png" for i in range(count)]) if ids is None else np.asarray(ids),
        "given_label": labels,
        "suggested_label": (labels + 1) % num_classes,
        "trusted": np.full(count, trusted),
        "p_mislabeled": np.where(labels == 0, 0.9, 0.4) - np.arange(count) / 1000,
        "harm_solved": np.ones(count),
        "worst_solved": np.ones(count),
        "margin": -np.ones(count),
    }


def number_of(card):
    """The number in the id that :func:`table` gives."""
    return int(card.id[4:-4])


def decide(url, path, wrong, skip=(), unsure=()):
    """Write verdicts as the page does: wrong for some numbers of examples."""
    found = read_lists(url)[-1]
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "given_label", "decision", "reviewer", "list"])
        for place, card in enumerate(found.cards):
            if place not in skip:
                verdict = "unsure" if place in unsure else "none" if number_of(card) in wrong else "keep"
                rows.writerow([card.id, card.given_label, verdict, "ann", found.list_id])
    return path


def verified(run, tmp_path, wrong, **how):
    """Draw a sample of a run and say which of its labels are wrong, by their numbers."""
    answer("verify", run, "--page", tmp_path / "check.html")
    return answer("verify", run, "--verdicts", decide(run, tmp_path / "verdicts.csv", wrong, **how))
