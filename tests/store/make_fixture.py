"""Writes the small run that must load for ever: ``python -m tests.store.make_fixture tests/fixtures/run_vN``.

To be run once for each schema version, before its first release; a folder that is there is not touched.
"""

import json
import sys
from pathlib import Path

import numpy as np

from sgoif.store import ParquetSink, RunFiles, write_examples
from tests.store.visits import batch, kill

IDS = np.array(["cat.jpg", "dog's.jpg", '<b>"bird"</b>.png', "shard-00012.tar/日本語", "a" * 300, *"bcdefghijkl"])


def write(sink, steps):
    for step in steps:
        item = batch(np.roll(IDS, -8 * step)[:8], step, step // 2, seed=100 + step)
        item.columns["harm"][step % 8], item.columns["flags"][step % 8] = np.nan, 2
        sink.write(item)


def make(folder: Path) -> None:
    canary = {"assigned_label": [1], "is_flip": [False], "harm": [-0.5]}
    first = ParquetSink(folder)
    write(first, range(6))
    first.write_table("canaries", {"holdout_id": ["h1"], "refresh_step": [4], **canary})
    first.checkpoint()
    write(first, range(6, 9))
    first.write_table("canaries", {"holdout_id": ["h2"], "refresh_step": [8], **canary})
    first.checkpoint()  # and killed; the checkpoint at step 6 is the one that is resumed from
    kill(first)
    second = ParquetSink(folder, start_step=6, facts={"seed": 7})
    write(second, range(6, 12))
    second.write_table("canaries", {"holdout_id": ["h2"], "refresh_step": [8], **canary})
    second.write_table("anchors", {"refresh_step": [4, 8], "anchor": [0, 0], "class": [0, 0], "tau": [0.4, 0.4]})
    second.write_table("holdout", {"id": ["h1", "h2"], "given_label": [0, 1], "posterior": [[0.9, 0.1], [0.2, 0.8]]})
    second.close()
    files = RunFiles(folder)
    write_examples(files)
    tables = ("visits", "canaries", "holdout", "anchors", "examples")
    info = json.loads((folder / "run.json").read_text())
    info["facts"]["rows"] = {table: files.table(table).num_rows for table in tables}
    info["facts"]["top"] = files.sql("select id, harm from visits order by harm desc limit 1").to_pylist()[0]
    (folder / "run.json").write_text(json.dumps(info, indent=2) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if target.exists():
        sys.exit(f"{target} is there; a fixture is never rewritten")
    make(target)
