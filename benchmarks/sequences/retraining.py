"""A character-level GPT-2 trained on random halves of some sequences: what their scores are held against.

Every retraining is one line of results: the loss of each held-out sequence after training on one half. The seed is that
of the initial weights and of the order; all halves of one seed share both, so that their losses differ by their data
alone. A second seed tells how much of the rest is noise. With an adapter, LoRA matrices are trained in a model
that knows another kind of text, the queries of Banking77 and CLINC150, and whose own weights stay.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks import cache
from benchmarks.data import DataMissing, data_root
from benchmarks.exactness import draw_members
from benchmarks.experiment import Experiment
from benchmarks.records import RESULTS, read_results
from benchmarks.sequences.instructions import SOURCES, load_instructions
from benchmarks.sequences.training import build
from sgoif.tasks.sequences import next_tokens, sequence_losses, token_losses

__all__ = [
    *("ADAPTED", "Half", "Recipe", "Texts", "held_losses", "load_texts", "make_model", "members_of", "read_bank"),
    "train",
]

FILE = "sequence_retraining.jsonl"
HALVES, SEEDS = 50, (0, 1)
ADAPTED = {"adapter": 8, "rate": 5e-3}  # settings of the draw with LoRA
_WARM_UP = 10  # steps
_BASE_RATE = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and how; on a half, an epoch has half as many steps."""

    sequences: int = 256
    held: int = 96
    length: int = 64  # characters of a sequence
    width: int = 128
    depth: int = 4
    batch: int = 8
    epochs: int = 8
    rate: float = 2e-3  # of AdamW, falling to zero
    adapter: int | None = None  # rank of LoRA matrices; None trains all weights from scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class Half(Recipe):
    """One retraining."""

    half: int = 0  # which of the random halves
    seed: int = 0

    @property
    def recipe(self) -> Recipe:
        """Without the half and the seed."""
        values = asdict(self)
        return Recipe(**{name: values[name] for name in asdict(Recipe())})


@dataclass(frozen=True)
class Texts:
    """Sequences of character numbers."""

    train: Tensor  # [n, T]
    held: Tensor  # [m, T]
    characters: NDArray[np.str_]  # by number

    @property
    def vocabulary(self) -> int:
        """How many characters there are."""
        return len(self.characters)


def load_texts(recipe: Recipe) -> Texts:
    """The last sequences of tinyshakespeare are held out; those to train on are drawn from all before them."""
    path = data_root() / "text" / "tinyshakespeare" / "input.txt"
    if not path.is_file():
        raise DataMissing(f"'{path}' is missing; SGOIF_DATA must name the folder that holds text/tinyshakespeare.")
    characters, numbers = np.unique(np.array(list(path.read_text())), return_inverse=True)
    count = len(numbers) // recipe.length
    rows = torch.from_numpy(numbers[: count * recipe.length]).view(count, recipe.length).long()
    chosen = np.random.default_rng(0).choice(count - recipe.held, recipe.sequences, replace=False)
    return Texts(rows[np.sort(chosen)], rows[count - recipe.held :], characters)


def load_base(recipe: Recipe, characters: Sequence[str]) -> dict[str, Tensor]:
    """Weights of a model trained on the queries of the intent sets, from the cache where it has them."""
    known = json.dumps([recipe.length, recipe.width, recipe.depth, list(characters)])
    name = hashlib.sha256(known.encode()).hexdigest()[:12]
    return cache.keep(f"sequence-bases/{name}.pt", lambda: train_base(recipe, characters))


def train_base(recipe: Recipe, characters: Sequence[str]) -> dict[str, Tensor]:
    """One pass over all queries; characters that are not known are blanks."""
    queries = [q for source in SOURCES for q in load_instructions(source, 100, 1).queries]
    number = {character: place for place, character in enumerate(characters)}
    written = [number.get(character, number[" "]) for character in "\n".join(queries)]
    rows = torch.tensor(written[: len(written) // recipe.length * recipe.length]).view(-1, recipe.length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(recipe.width, recipe.depth, len(characters), recipe.length, tied=False)
    whole = replace(recipe, sequences=len(rows), batch=32, epochs=1, rate=_BASE_RATE, adapter=None)
    train(whole, rows, np.ones(len(rows), dtype=bool), 0, model=model)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def members_of(recipe: Recipe, halves: int) -> NDArray[np.bool_]:
    """Which sequences are in which half, ``[halves, sequences]``; more halves begin with the same ones."""
    return draw_members(halves, recipe.sequences, recipe.sequences // 2, seed=0)


def make_model(recipe: Recipe, texts: Texts, seed: int) -> nn.Module:
    """The model before its training; its output layer has weights of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(recipe.width, recipe.depth, texts.vocabulary, recipe.length, tied=False)
        return model if recipe.adapter is None else _adapt(model, recipe, recipe.adapter, texts)


def _adapt(model: nn.Module, recipe: Recipe, rank: int, texts: Texts) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    model.load_state_dict(load_base(recipe, texts.characters.tolist()))
    modules = ["c_attn", "c_proj", "c_fc"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=modules, fan_in_fan_out=True, task_type="CAUSAL_LM")
    found: nn.Module = get_peft_model(model, config)
    return found


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=recipe.rate, weight_decay=0.01)


def batches(recipe: Recipe, members: NDArray[np.bool_], seed: int) -> Iterator[Tensor]:
    """The order of all sequences, without those that are not members."""
    generator = torch.Generator().manual_seed(seed)
    is_member = torch.from_numpy(members)
    for _ in range(recipe.epochs):
        order = torch.randperm(recipe.sequences, generator=generator)
        yield from order[is_member[order]].split(recipe.batch)


def train(
    recipe: Recipe,
    rows: Tensor,
    members: NDArray[np.bool_],
    seed: int,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    monitors: tuple[Any, ...] = (),
    on_step: Callable[[int, float], None] | None = None,
) -> float:
    """Train a fresh model on the members; returns the mean loss per token over the last epoch.

    ``on_step`` is called before every step with its number and its learning rate.
    """
    optimizer = optimizer or make_optimizer(recipe, model)
    chosen = list(batches(recipe, members, seed))
    steps, losses = len(chosen), []
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / _WARM_UP) * (1 - step / steps)
    )
    model.train()
    for step, ids in enumerate(chosen):
        if on_step is not None:
            on_step(step, float(schedule.get_last_lr()[0]))
        with ExitStack() as stack:
            for monitor in monitors:
                stack.enter_context(monitor.step(ids, rows[ids]))
            loss = model(input_ids=rows[ids], labels=rows[ids]).loss
            loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-(steps // recipe.epochs) :]))


@torch.no_grad()
def held_losses(model: nn.Module, rows: Tensor) -> NDArray[np.float64]:
    """Mean loss per token of every sequence."""
    model.eval()
    targets = next_tokens(rows, is_causal=True)
    found = [
        sequence_losses(token_losses(model(input_ids=part).logits, wanted)) / (rows.shape[1] - 1)
        for part, wanted in zip(rows.split(32), targets.split(32), strict=True)
    ]
    return torch.cat(found).double().numpy()


def run(half: Half) -> dict[str, Any]:
    """Train on one half."""
    started = time.perf_counter()
    recipe = half.recipe
    texts = load_texts(recipe)
    model = make_model(recipe, texts, half.seed)
    last = train(recipe, texts.train, members_of(recipe, half.half + 1)[-1], half.seed, model=model)
    losses = held_losses(model, texts.held)
    seconds = time.perf_counter() - started
    return {"losses": losses.round(6), "train_loss": last, "held_loss": losses.mean(), "seconds": seconds}


def read_bank(recipe: Recipe, halves: int, seeds: tuple[int, ...]) -> NDArray[np.float64]:
    """Losses of the held-out sequences by seed and half, ``[R, S, m]``; what has no line of results is trained now."""
    wanted = {}
    if (RESULTS / FILE).is_file():
        wanted = {(str(row["settings"]), row["seed"]): row["losses"] for row in read_results(FILE)}
    found = np.empty((len(seeds), halves, recipe.held))
    for place, seed in enumerate(seeds):
        for half in range(halves):
            asked = Half(**asdict(recipe), half=half, seed=seed)
            known = wanted.get((str(dict(sorted(EXPERIMENT.record(asked).items()))), seed))
            found[place, half] = run(asked)["losses"] if known is None else known
    return found


EXPERIMENT = Experiment(
    name="sequence_retraining",
    settings=Half,
    run=run,
    file=FILE,
    sparse=True,
    full=({"half": range(HALVES), "seed": SEEDS}, {**ADAPTED, "half": range(HALVES)}),
    small={"sequences": 16, "held": 8, "length": 16, "width": 32, "depth": 1, "epochs": 1, "half": (0, 1)},
    needs=("transformers",),
    describe=lambda row: (
        f"loss {row['train_loss']:.3f} in training, {row['held_loss']:.3f} held out; {row['seconds']:.0f} s"
    ),
)
