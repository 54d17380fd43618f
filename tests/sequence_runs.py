"""Small runs about sequences on disk, as a watched training or an audit writes them."""

import numpy as np

from sgoif.findings.sequences import NO_PROBABILITIES
from sgoif.store import ParquetSink


def suspicions(rows):
    """What an audit's table ranks by, from its other columns."""
    loss, tuned, conflict, coverage = (
        np.array(rows[name].to_pylist(), float) for name in ("loss_last", "loss_tuned", "conflict", "coverage")
    )
    sizes = np.abs(conflict)
    order = np.argsort(sizes)
    below = np.cumsum(coverage[order])
    middle = [np.searchsorted(below, below[-1] / 2, side) for side in ("left", "right")]
    x = coverage * conflict / (2 * sizes[order][middle].mean())
    return (loss + coverage * np.nan_to_num(tuned - loss)) * (x + np.sqrt(1 + x * x))


def write_sequence_run(folder, ids, harm, loss, groups=("math", "code"), *, conflict=None):
    """Write a run and return its address.

    Args:
        folder: of the run.
        ids: of the sequences.
        harm: [sequences, groups]; NaN where one was never judged.
        loss: of the sequences, the same at all visits; NaN where one has no token to predict.
        groups: their names.
        conflict: of the sequences, where the run is an audit's.
    """
    is_judged, mean, count = np.isfinite(harm[:, 0]), harm.mean(1), len(ids)
    worst = [groups[np.argmax(row)] if judged else None for row, judged in zip(harm, is_judged)]
    examples = {
        "id": np.array(ids),
        "n_visits": np.where(is_judged, 3, 1),
        "n_judged": np.where(is_judged, 2, 0),
        "confidence": np.where(is_judged, 2 / 3, 0),
        "num_tokens": np.where(np.isnan(loss), 0, np.array([7, 1200, 3, 4] * count)[:count]),
        **{name: loss for name in ("loss", "loss_first", "loss_last")},
        "harm": mean,
        "worst": harm.max(1),
        "worst_group": np.array(worst, object),
        "cosine": mean,
        **{f"p_mislabeled{tail}": np.full(count, np.nan) for tail in ("", "_low", "_high")},
        "no_p_reason": np.array([NO_PROBABILITIES] * count, object),
        **({} if conflict is None else {"conflict": conflict}),
    }
    effects = {
        "id": np.repeat(np.array(ids)[is_judged], len(groups)),
        "group_name": np.array(list(groups) * int(is_judged.sum()), object),
        "harm": harm[is_judged].reshape(-1),
        "cosine": harm[is_judged].reshape(-1),
    }
    facts = {"task": "sequences", "kind": "watch", "num_not_judged": int((~is_judged).sum())}
    facts |= {"groups": {name: {"num_sequences": 5, "last_loss": 1.5} for name in groups}}
    facts |= {"method": {"curvature": "kfac", "layers": ["lm_head"]}, "no_p_reason": NO_PROBABILITIES}
    sink = ParquetSink(str(folder), facts=facts)
    sink.write_table("examples", examples)
    sink.write_table("group_effects", effects)
    sink.close()
    return str(folder)
