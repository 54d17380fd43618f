"""Made-up visits in the form in which training hands them over, and the same as a plain table to compare with."""

import atexit

import numpy as np

from sgoif.records import SIGNALS, ScoreBatch
from sgoif.store import ParquetSink, RunFiles


def batch(ids, step=0, epoch=0, seed=None, micro_step=0, **changes):
    """One step's visits; a row's loss is unique to (step, position), so that a row can be told from any other."""
    ids = np.asarray(ids)
    rng = np.random.default_rng(step if seed is None else seed)
    columns = {name: rng.standard_normal(len(ids)).astype(np.float32) for name in SIGNALS}
    columns |= {name: rng.integers(0, 5, len(ids)).astype(np.float32) for name in ("runner_up", "worst_anchor")}
    columns |= {name: rng.random(len(ids)).astype(np.float32) for name in ("confidence", "confidence_worst")}
    columns["flags"] = np.zeros(len(ids), np.float32)
    columns["loss"] = (step * 1000 + np.arange(len(ids))).astype(np.float32)
    columns |= {f"{name}_std": columns[name].astype(np.float64) / 2 for name in ("harm", "worst")}
    columns |= changes
    return ScoreBatch(ids, rng.integers(0, 5, len(ids)), step, epoch, 0, 0, micro_step, columns)


def write_steps(sink, steps, size=8, num_examples=40):
    """Training in order over a fixed dataset: step s visits the next few examples, epoch after epoch."""
    for step in steps:
        first = step * size
        sink.write(batch((first + np.arange(size)) % num_examples, step, first // num_examples))


def begin(folder, *what, **settings):
    """Write batches, or steps in order, and give the sink."""
    sink = ParquetSink(folder, **settings)
    for item in what:
        write_steps(sink, item) if isinstance(item, range) else sink.write(item)
    return sink


def store(folder, *what, **settings):
    """Write them as an attempt that ends well, and give the run that is on disk then."""
    begin(folder, *what, **settings).close()
    return RunFiles(folder)


def pairs(files):
    """All (id, step) that count, sorted; duplicates would show."""
    rows = files.sql("select id, step from visits order by step, id")
    return list(zip(rows["id"].to_pylist(), rows["step"].to_pylist(), strict=True))


def expected_pairs(steps, size=8, num_examples=40):
    found = [(int(i), step) for step in steps for i in (step * size + np.arange(size)) % num_examples]
    return sorted(found, key=lambda pair: (pair[1], pair[0]))


def kill(sink):
    """Leave a sink as a killed process leaves it: nothing more is written, not even at exit."""
    atexit.unregister(sink._at_exit)
