"""What others find in the same training."""

from __future__ import annotations

import numpy as np

from benchmarks.label_noise_tables import name_of
from benchmarks.tables.rows import grouped, interval, latest, table


def rivals(file: str = "rivals.jsonl") -> str:
    """AP of every rival in every setting, mean over seeds, and what it costs beside the training.

    Raises:
        ValueError: The file mixes tiers, whose figures must not stand side by side.
    """
    runs = latest(file)
    for (dataset,), same in grouped(runs, ("dataset",)):
        sizes = {(run["settings"]["examples"], run["settings"]["epochs"]) for run in same}
        if len(sizes) > 1:
            raise ValueError(f"{file} mixes tiers on {dataset} (examples, epochs): {sorted(sizes)}; split the file")
    columns = [where for where, _ in grouped(runs, ("dataset", "setting"))]
    rows = []
    for group, said in (("label-free", "given labels"), ("trusted", "trusted hold-out")):
        for (rival,), same in grouped([run for run in runs if run["group"] == group], ("rival",)):
            found = dict(grouped(same, ("dataset", "setting")))
            cells = [interval([run["report"]["ap"] for run in found[key]]) if key in found else "" for key in columns]
            rows.append([said, rival, *cells, f"{np.mean([run['cost'] for run in same]):.2f}"])
            said = ""
    names = [name_of(dataset, setting) for dataset, setting in columns]
    return table(("uses", "rival", *names, "cost"), rows)
