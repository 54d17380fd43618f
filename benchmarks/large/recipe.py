"""Recipes: what is trained in tier G, one TOML file each, every field of which is checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import sgoif
from benchmarks.large.datasets import DATASETS, OPENOOD_SETS
from benchmarks.models import ResNet18, ResNet50

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

FOLDER = Path(__file__).resolve().parent / "recipes"
MODELS: Mapping[str, type[ResNet18 | ResNet50]] = {"resnet18": ResNet18, "resnet50": ResNet50}
_CHOICES: Mapping[str, Sequence[str]] = {
    "dataset": tuple(DATASETS),
    "model": tuple(MODELS),
    "stem": ("small", "large"),
    "amp": ("bf16", "none"),
    "holdout": ("trusted", "as-given"),
}
_KINDS: Mapping[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "dict": (dict,)}


class RecipeError(ValueError):
    """A recipe has a field that is unknown, missing or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and how it is watched."""

    name: str  # of its file
    table: str  # of the paper that needs it, or none
    dataset: str
    model: str
    image: int  # pixels of a side
    epochs: int
    batch: int  # of all ranks together
    lr: float  # the peak of the cycle
    seeds: list[int]
    held_per_class: int  # pictures of the hold-out
    stem: str = "large"
    width: int = 64  # channels of the first layer
    weight_decay: float = 1e-4
    warmup: float = 0.1  # share of the steps before the peak
    amp: str = "bf16"
    ranks: int = 1
    holdout: str = "trusted"  # of the clean split, or taken from the training pictures with their given labels
    noises: list[str] = field(default_factory=lambda: ["none"])  # settings of benchmarks.noise, a training for each
    ood: list[str] = field(default_factory=list)  # lists of OpenOOD that the finished network is tried on
    method: dict[str, Any] = field(default_factory=dict)  # fields of sgoif.Method

    def __post_init__(self) -> None:
        values = asdict(self)
        for item in fields(self):
            self._check_kind(item.name, str(item.type), values[item.name])
        for name, known in _CHOICES.items():
            if values[name] not in known:
                raise RecipeError(f"{self.name}: {name} must be one of {', '.join(known)}, got {values[name]!r}")
        if self.batch % self.ranks:
            raise RecipeError(f"{self.name}: batch {self.batch} cannot be shared by {self.ranks} ranks")
        if not self.seeds or not self.noises:
            raise RecipeError(f"{self.name}: seeds and noises must name at least one each")
        if self.noises != ["none"] and not DATASETS[self.dataset].is_clean:
            raise RecipeError(f"{self.name}: the labels of {self.dataset} are noisy already, so noises must be none")
        unknown = sorted({f"test_{name}" for name in self.ood} - OPENOOD_SETS.keys())
        if unknown:
            raise RecipeError(
                f"{self.name}: OpenOOD has no list {', '.join(unknown)}; known: {', '.join(OPENOOD_SETS)}"
            )
        self.make_method(1)

    def _check_kind(self, name: str, kind: str, value: Any) -> None:
        """Refuse a value of another kind than the field's, and numbers that are not positive."""
        outer, _, inner = kind.partition("[")
        is_list = outer == "list"
        kinds = _KINDS[inner.rstrip("]") if is_list else outer]
        parts = value if is_list and isinstance(value, list) else [value]
        if isinstance(value, list) != is_list or any(type(part) not in kinds for part in parts):
            raise RecipeError(f"{self.name}: {name} must be of the kind {kind}, got {value!r}")
        if isinstance(value, int | float) and value <= 0:
            raise RecipeError(f"{self.name}: {name} must be positive, got {value!r}")

    def make_method(self, steps: int) -> sgoif.Method:
        """The method of a training of so many steps."""
        known = [item.name for item in fields(sgoif.Method) if item.name != "planned_steps"]
        unknown = sorted(self.method.keys() - set(known))
        if unknown:
            raise RecipeError(f"{self.name}: method has no field {', '.join(unknown)}; known: {', '.join(known)}")
        return sgoif.Method(**self.method, planned_steps=steps)

    def make_model(self, classes: int) -> ResNet18 | ResNet50:
        """The network, on the device of the context."""
        return MODELS[self.model](classes, self.width, stem=self.stem)  # type: ignore[arg-type]


def read_recipe(path: Path) -> Recipe:
    """Read one recipe."""
    with path.open("rb") as file:
        values = tomllib.load(file)
    known = {item.name: item for item in fields(Recipe) if item.name != "name"}
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise RecipeError(f"{path.stem}: no field {', '.join(unknown)}; known: {', '.join(known)}")
    try:
        return Recipe(name=path.stem, **values)
    except TypeError as error:  # names the fields that are missing
        raise RecipeError(f"{path.stem}: {error}") from error


def read_recipes(only: Sequence[str] = ()) -> list[Recipe]:
    """Read all recipes, or those that are named."""
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
    unknown = sorted(set(only) - paths.keys())
    if unknown:
        raise RecipeError(f"no recipe {', '.join(unknown)}; known: {', '.join(paths)}")
    return [read_recipe(paths[name]) for name in (only or paths)]
