"""What a run noticed that its reader must know, and whether its figures can be trusted all the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sgoif.wording import clean, count

__all__ = ["Doubt", "doubts_of", "has_trained_on_holdout"]

_ON_HOLDOUT = "trained_on_anchors"
_SPOILING = (_ON_HOLDOUT, "batch_positions", "few_ids")
_NOT_TOLD = "overhead"  # a price that says nothing about the figures; `sgoif info` has it
_MOST_GONE = 0.5  # share of the visits
_LEAST_SEEN = 0.5  # share of the training examples


@dataclass(frozen=True, slots=True)
class Doubt:
    """A warning about a run: a sentence without its full stop, and whether it spoils the figures."""

    text: str
    spoils: bool
    is_of_holdout: bool = False  # what people checked among all examples is not concerned


def has_trained_on_holdout(info: Mapping[str, Any]) -> bool:
    """Whether the run noticed that its hold-out was trained on."""
    return _ON_HOLDOUT in _mapping(info.get("warnings"))


def doubts_of(info: Mapping[str, Any], num_examples: int) -> list[Doubt]:
    """Collect what was noticed while training, visits that are gone, and examples that were not seen.

    >>> info = {"counters": {"visits_offered": 300}, "train_size": 100}
    >>> [doubt.text for doubt in doubts_of(info, 30)]
    ['the ids of 30 examples were seen, where train_size is 100; the figures are about these 30 only']
    """
    warnings = _mapping(info.get("warnings"))
    found = [
        Doubt(clean(str(text)).removesuffix("."), key in _SPOILING, key == _ON_HOLDOUT)
        for key, text in warnings.items()
        if key != _NOT_TOLD and text
    ]
    counters = _mapping(info.get("counters"))
    offered = _number(counters.get("visits_offered"))
    if off := _mapping(info.get("switched_off")):
        told = clean(str(off.get("reason", "it was not noted why"))).partition("\n")[0].removesuffix(".")
        found.append(Doubt(f"scoring ended after step {off.get('step', '?')} of the training: {told}", spoils=False))
    added_up = _mapping(info.get("added_up"))
    if added_up and info.get("state") != "finished":
        span = f"steps {added_up.get('first_step', '?')} to {added_up.get('last_step', '?')}"
        text = "the training ended without monitor.close(), or goes on: these figures are of the visits on disk, of "
        found.append(Doubt(text + span, spoils=False))
    found += _gone(info, counters, offered)
    train_size = _number(info.get("train_size"))
    if num_examples and num_examples < _LEAST_SEEN * train_size and "few_ids" not in warnings:
        seen = f"the ids of {count(num_examples, 'example')} were seen, where train_size is {count(train_size)}"
        # fewer visits than examples can be a short training or a plan that scores few steps: a fair sample
        found.append(Doubt(f"{seen}; the figures are about these {count(num_examples)} only", offered >= train_size))
    return found


def _gone(info: Mapping[str, Any], counters: Mapping[str, Any], offered: float) -> list[Doubt]:
    refused, lost = (_number(counters.get(f"visits_{what}")) for what in ("refused", "lost"))
    if refused + lost <= _MOST_GONE * offered:
        return []
    causes = {**_mapping(info.get("visits_refused")), **_mapping(info.get("visits_lost"))}
    most = max(causes, key=lambda cause: _number(causes[cause]), default="")
    why = f" (most often: {clean(most).removesuffix('.')})" if most else ""
    text = f"{count(refused + lost)} of {count(offered, 'visit')} were refused or lost{why}"
    unlabelled = _number(counters.get("visits_ignored"))  # rows of ignore_index, which nobody wants judged
    return [Doubt(text, refused + lost - unlabelled > _MOST_GONE * offered)]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
