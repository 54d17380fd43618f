"""A fitted judge as arrays under plain names and a document of JSON, without the examples that it was fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgoif.evidence import Competence
from sgoif.judging.fitting import FittedNoise
from sgoif.judging.judge import Judge
from sgoif.judging.memory import OddsMap
from sgoif.judging.noise import NoiseModel
from sgoif.judging.pool import Doubt, Pool
from sgoif.judging.weakness import Belief

__all__ = ["judge_from_plain", "judge_to_plain"]

Arrays = dict[str, NDArray[Any]]

_MODELS = ("likely", "lowest", "highest")


def judge_to_plain(judge: Judge) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and a document; :func:`judge_from_plain` is the inverse."""
    fitted, belief = judge.fitted, judge.fitted.belief
    arrays: Arrays = {"classes": judge.classes, "counts": fitted.counts}
    if judge.moved is not None:
        arrays |= {"moved/x": judge.moved.x, "moved/y": judge.moved.y}
    models: dict[str, Any] = {}
    for name in _MODELS:
        model: NoiseModel | None = getattr(belief, name)
        if model is None:
            continue
        arrays |= {f"{name}/transition": model.transition, f"{name}/exponents": model.pool.exponents.numpy()}
        doubt = model.pool.doubt
        if doubt is not None:
            arrays[f"{name}/near"] = doubt.near.numpy()
        models[name] = {"is_recovered": model.is_recovered, "doubt": None if doubt is None else doubt.share}
    document = {
        "num_classes": judge.num_classes,
        "is_by_order": judge.is_by_order,
        "competence": asdict(judge.competence),
        "kind": belief.kind,
        "rate": belief.rate,
        "evidence": belief.evidence,
        "expected_accuracy": fitted.expected_accuracy,
        "heads": list(fitted.names),
        "models": models,
    }
    return arrays, document


def judge_from_plain(arrays: Mapping[str, NDArray[Any]], document: Mapping[str, Any]) -> Judge:
    """The judge of what :func:`judge_to_plain` gave."""
    models = {name: _read_model(name, arrays, document["models"].get(name)) for name in _MODELS}
    likely = models["likely"]
    assert likely is not None
    belief = Belief(
        document["kind"], likely, models["lowest"], models["highest"], document["rate"], document["evidence"]
    )
    fitted = FittedNoise(
        belief,
        arrays["counts"],
        np.zeros(0, np.int64),
        document["expected_accuracy"],
        is_refitted=False,
        names=document["heads"],
    )
    moved = OddsMap(arrays["moved/x"], arrays["moved/y"]) if "moved/x" in arrays else None
    competence = Competence(**document["competence"])
    return Judge(
        arrays["classes"], document["num_classes"], fitted, competence, moved, is_by_order=document["is_by_order"]
    )


def _read_model(name: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any] | None) -> NoiseModel | None:
    if facts is None:
        return None
    doubt = None if facts["doubt"] is None else Doubt(facts["doubt"], torch.from_numpy(arrays[f"{name}/near"]))
    transition = arrays[f"{name}/transition"]
    nobody = torch.zeros(0, len(transition))  # whose predictions a judge is given with the examples
    exponents = torch.from_numpy(arrays[f"{name}/exponents"])
    pool = Pool([nobody] * len(exponents), exponents, doubt)
    return NoiseModel(pool, transition, torch.zeros(0, dtype=torch.long), is_recovered=facts["is_recovered"])
