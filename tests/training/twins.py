"""Two trainings of one model in one process, bare and watched, that random user behaviour drives side by side.

After every action both must have the same weights, gradients, buffers, optimizer state, modes and random numbers, to
the bit, and must have seen the same exceptions of their own.
"""

from __future__ import annotations

import copy
import io
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.errors import SgoifError
from tests.grouped import grouped

NUM_CLASSES, TRAIN_SIZE = 3, 40
PLAN = sgoif.Plan(refresh_every=3, examples_per_refresh=16, observe_every=2)


class UserError(Exception):
    """An exception of the user's own loop."""


def make_net(kind: str) -> nn.Module:
    """A network in which one pass too many is seen at once: it has batch norm and dropout."""
    torch.manual_seed(0)
    if kind == "mlp":
        body = nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3))
        return nn.Sequential(body, nn.Linear(6, NUM_CLASSES))
    body = nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.2))
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, NUM_CLASSES))


def make_data(num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs ``[num, 2, 2, 2]`` around one centre per class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(NUM_CLASSES, 2, 2, 2, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(num) % NUM_CLASSES
    return centres[labels] + torch.randn(num, 2, 2, 2, generator=generator), labels


class Augmented(torch.utils.data.Dataset):
    """A hold-out that draws from every global generator when an item is read."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Any]:
        noise = torch.rand(()) + random.random() + np.random.rand()
        return self.inputs[index] + 0.01 * float(noise), self.labels[index]


@dataclass(frozen=True)
class Batch:
    """One micro-step of the user's loop; the defaults are an ordinary one."""

    seed: int = 0
    size: int = 6
    ids: str = "ints"
    targets: str = "plain"
    inputs: str = "plain"
    loss: str = "mean"
    forward: str = "once"
    backward: str = "once"
    raises: str = "never"
    zero_grad: str = "none"
    updates: bool = True
    is_last: bool | None = None
    weights: str = "none"

    @property
    def is_ordinary(self) -> bool:
        """Whether every row can be scored, and the declared loss can be checked by it."""
        odd = (self.targets, self.inputs, self.loss, self.forward, self.backward, self.raises, self.weights)
        usual = ("plain", "plain", "mean", "once", "once", "never", "none")
        return self.size > 1 and self.ids == "ints" and odd == usual


# What may be odd about a batch, one or two at a time.
ODD: list[tuple[str, Any]] = [
    *(("size", size) for size in (0, 1, 2, 13)),
    *(("ids", kind) for kind in ("repeated", "strings", "floats", "column", "short", "long", "huge", "bytes", "bools")),
    *(("ids", kind) for kind in ("list", "negative", "none", "objects", "scalar", "device")),
    *(("targets", kind) for kind in ("int32", "uint8", "ignored", "all_ignored", "out_of_range", "negative", "soft")),
    *(("targets", kind) for kind in ("one_hot", "mixed", "column", "short", "list", "unknown", "floats", "scalar")),
    *(("inputs", kind) for kind in ("nan", "inf", "one_nan", "huge")),
    *(("loss", kind) for kind in ("nan", "zero", "scaled", "sum", "inf")),
    *(("forward", kind) for kind in ("twice", "unused", "eval", "no_grad", "eval_whole", "none")),
    *(("backward", kind) for kind in ("twice", "none", "later")),
    *(("raises", kind) for kind in ("first", "middle", "last")),
    *(("zero_grad", kind) for kind in ("zeros", "never", "before")),
    *(("weights", kind) for kind in ("ones", "short", "nan", "zero")),
    ("updates", False),
    ("is_last", True),
    ("is_last", False),
]


@dataclass
class Side:
    """One of the two trainings."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    task: str
    monitor: Any = None
    randomness: Any = None
    refusal: SgoifError | None = None  # raised by the monitor in the last action
    offered: int = 0  # rows of steps that were not left by an exception, with the monitor on
    could_check: bool = False  # whether the last batch left finite gradients at the head, not all zero

    def step(self, ids: Any, targets: Any, **settings: Any) -> Any:
        return nullcontext() if self.monitor is None else self.monitor.step(ids, targets, **settings)


class Twins:
    """Both trainings.

    Args:
        kind: of the network.
        task: as ``watch`` has it.
    """

    def __init__(self, kind: str, task: str) -> None:
        self.task = task
        self.bare, self.watched = (_start(kind, task) for _ in range(2))
        self._first = copy.deepcopy(self.bare.model.state_dict())
        self.inputs, self.labels = make_data(TRAIN_SIZE, seed=1)
        if task == "multilabel":
            self.labels = _tags(self.labels)

    def both(self, action: Callable[[Side], Any]) -> None:
        """Do the same on both sides, each with random numbers of its own, and compare."""
        outside = _random_state()
        said = []
        for side in (self.bare, self.watched):
            _set_random_state(side.randomness)
            side.refusal = None
            said.append(action(side))
            side.randomness = _random_state()
        _set_random_state(outside)
        if self.watched.refusal is None:
            assert said[0] == said[1], f"bare: {said[0]}, watched: {said[1]}"
        elif said[0] != said[1]:  # refused at the door: this script ends, and another begins from where the bare one is
            self._copy_bare()
        self.compare()

    def alone(self, action: Callable[[], Any]) -> Any:
        """Do something on the watched side that the bare one has no word for; it must leave no trace there."""
        outside = _random_state()
        _set_random_state(self.watched.randomness)
        try:
            return action()
        finally:
            self.watched.randomness = _random_state()
            _set_random_state(outside)
            self.compare()

    def compare(self) -> None:
        """Ask for the same state to the bit."""
        one, two = (_state_of(side) for side in (self.bare, self.watched))
        assert one.keys() == two.keys(), one.keys() ^ two.keys()
        different = [key for key in one if one[key] != two[key]]
        assert not different, f"watching changed {different}"

    @property
    def is_finite(self) -> bool:
        """Whether the weights and statistics are."""
        return all(bool(value.isfinite().all()) for value in self.bare.model.state_dict().values())

    def batch(self, batch: Batch) -> None:
        """One micro-step on both sides."""
        self.both(lambda side: self._run(side, batch))

    def nested(self, outer: Batch, inner: Batch) -> None:
        """One step inside another."""
        self.both(lambda side: self._run(side, outer, inside=lambda: self._run(side, inner)))

    def leave_open(self, batch: Batch) -> None:
        """Enter a step and never leave it."""

        def action(side: Side) -> list[str]:
            ids, targets, _ = self.given(batch)
            context = side.step(ids, targets)
            context.__enter__()
            self.loss_of(side, batch).backward()
            side.optimizer.zero_grad()
            return []

        self.both(action)

    def drop_generator(self, batch: Batch) -> None:
        """Stop in the middle of a generator that holds a step open."""

        def loop(side: Side) -> Any:
            ids, targets, _ = self.given(batch)
            with side.step(ids, targets):
                yield self.loss_of(side, batch).backward()

        def action(side: Side) -> list[str]:
            running = loop(side)
            next(running)
            running.close()
            side.optimizer.zero_grad()
            return []

        self.both(action)

    def given(self, batch: Batch) -> tuple[Any, Any, torch.Tensor]:
        """Ids and targets as the monitor gets them, and the positions of the examples."""
        generator = torch.Generator().manual_seed(batch.seed)
        positions = torch.randperm(TRAIN_SIZE, generator=generator)[: batch.size]
        return _ids(batch.ids, positions), _targets(batch.targets, self.labels[positions]), positions

    def loss_of(self, side: Side, batch: Batch) -> torch.Tensor:
        """Forward pass and loss."""
        _, targets, positions = self.given(batch)
        inputs, labels = _inputs(batch.inputs, self.inputs[positions]), self.labels[positions]
        outputs = _forward(side.model, inputs, batch.forward)
        loss = _loss(self.task, outputs, _loss_targets(batch.targets, targets, labels), batch.loss)
        if batch.forward == "twice":
            loss = loss + _loss(self.task, side.model(inputs), labels, "mean")
        return loss

    def _run(self, side: Side, batch: Batch, inside: Callable[[], Any] = lambda: None) -> list[str]:
        """The user's loop body; returns what happened in it."""
        ids, targets, positions = self.given(batch)
        done: list[str] = []
        later = None
        is_on = side.monitor is not None and side.monitor.is_on
        if batch.zero_grad == "before":
            side.optimizer.zero_grad()
        try:
            with side.step(ids, targets, is_last=batch.is_last, weights=_weights(batch.weights, len(positions))):
                done.append("entered")
                _raise_if(batch.raises == "first")
                loss = self.loss_of(side, batch)
                done.append(str(loss.detach().numpy().tobytes()))
                done.append(str(inside()))
                _raise_if(batch.raises == "middle")
                if batch.backward == "later":
                    later = loss
                else:
                    for number in range({"once": 1, "twice": 2, "none": 0}[batch.backward]):
                        loss.backward(retain_graph=number == 0 and batch.backward == "twice")
                _raise_if(batch.raises == "last")
        except SgoifError as error:
            side.refusal = error
        except Exception as error:
            done.append(f"{type(error).__name__}: {error}"[:80])
        else:
            if is_on or (side.monitor is not None and side.monitor.facts.get("switched_off")):
                side.offered += 1 if isinstance(targets, torch.Tensor) and not targets.dim() else len(targets)
        if later is not None:
            try:
                later.backward()
            except RuntimeError as error:  # weights that it needs were changed meanwhile
                done.append(f"{type(error).__name__}"[:80])
        grad = side.model[-1].weight.grad
        side.could_check = grad is not None and bool(grad.isfinite().all()) and bool(grad.any())
        if batch.updates and batch.is_last is not False:
            side.optimizer.step()
        if batch.zero_grad != "never":
            side.optimizer.zero_grad(set_to_none=batch.zero_grad == "none")
        return done

    def roll_back(self) -> None:
        """Begin again from the first weights, as after a divergence."""

        def action(side: Side) -> None:
            side.model.load_state_dict(self._first)
            side.optimizer.state.clear()
            side.optimizer.zero_grad()

        self.both(action)

    def _copy_bare(self) -> None:
        bare, watched = self.bare, self.watched
        watched.model.load_state_dict(bare.model.state_dict())
        watched.optimizer.load_state_dict(copy.deepcopy(bare.optimizer.state_dict()))
        for one, two in zip(bare.model.parameters(), watched.model.parameters(), strict=True):
            two.grad = None if one.grad is None else one.grad.clone()
        watched.randomness = bare.randomness

    def save(self) -> dict[str, Any]:
        """Both trainings as checkpoints, the monitor's through a file."""
        kept: dict[str, Any] = {}
        for name, side in (("bare", self.bare), ("watched", self.watched)):
            kept[name] = copy.deepcopy((side.model.state_dict(), side.optimizer.state_dict(), side.randomness))
        torch.save(self.alone(self.watched.monitor.state_dict), file := io.BytesIO())
        file.seek(0)
        return kept | {"monitor": torch.load(file, weights_only=True)}

    def load(self, kept: dict[str, Any]) -> None:
        """Both trainings back to where they were saved; the monitor is loaded by the caller."""
        for name, side in (("bare", self.bare), ("watched", self.watched)):
            model, optimizer, side.randomness = copy.deepcopy(kept[name])
            side.model.load_state_dict(model)
            side.optimizer.load_state_dict(optimizer)
            side.optimizer.zero_grad()
        self.compare()


def _start(kind: str, task: str) -> Side:
    outside = _random_state()
    model = make_net(kind)
    side = Side(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4), task)
    side.randomness = _random_state()
    _set_random_state(outside)
    return side


def _raise_if(is_due: bool) -> None:
    if is_due:
        raise UserError("mine")


def _tags(labels: torch.Tensor) -> torch.Tensor:
    """Tag k is there for class k, and every tag for class 2."""
    return (F.one_hot(labels, NUM_CLASSES).bool() | (labels == 2)[:, None]).float()


def _ids(kind: str, positions: torch.Tensor) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "ints": lambda: positions,
        "list": lambda: positions.tolist(),
        "repeated": lambda: positions // 2,
        "strings": lambda: [f"shard/{i}.jpg" for i in positions.tolist()],
        "floats": lambda: positions.float(),
        "column": lambda: positions[:, None],
        "short": lambda: positions[:-1],
        "long": lambda: torch.cat([positions, positions]),
        "huge": lambda: [2**63 + i for i in positions.tolist()],
        "bytes": lambda: [str(i).encode() for i in positions.tolist()],
        "bools": lambda: positions > 3,
        "negative": lambda: -positions - 1,
        "none": lambda: None,
        "objects": lambda: [object() for _ in positions],
        "scalar": lambda: 7,
        "device": lambda: positions.to(torch.int32),
    }
    return made[kind]()


def _targets(kind: str, labels: torch.Tensor) -> Any:
    every_other = torch.arange(len(labels)) % 2 == 0
    made: dict[str, Callable[[], Any]] = {
        "int32": lambda: labels.int(),
        "uint8": lambda: labels.to(torch.uint8),
        "short": lambda: labels[:-1],
        "list": lambda: labels.tolist(),
    }
    if labels.dim() == 2:  # tags
        made |= {
            "unknown": lambda: labels.masked_fill(every_other[:, None], float("nan")),
            "ignored": lambda: labels.masked_fill(every_other[:, None], -1.0),
            "soft": lambda: labels * 0.5 + 0.2,
            "column": lambda: labels[:, :1],
            "scalar": lambda: torch.tensor(1.0),
        }
    else:
        made |= {
            "floats": lambda: labels.float(),
            "ignored": lambda: labels.masked_fill(every_other, -100),
            "all_ignored": lambda: torch.full_like(labels, -100),
            "out_of_range": lambda: labels + 1,
            "negative": lambda: labels - 1,
            "soft": lambda: 0.8 * F.one_hot(labels, NUM_CLASSES) + 0.2 / NUM_CLASSES,
            "one_hot": lambda: F.one_hot(labels, NUM_CLASSES).float(),
            "mixed": lambda: 0.6 * F.one_hot(labels, NUM_CLASSES) + 0.4 * F.one_hot(labels.flip(0), NUM_CLASSES),
            "column": lambda: labels[:, None],
            "scalar": lambda: torch.tensor(1),
        }
    return made.get(kind, lambda: labels)()


def _loss_targets(kind: str, targets: Any, labels: torch.Tensor) -> torch.Tensor:
    """What enters the user's loss, where it differs from what the monitor was told."""
    if kind in ("int32", "uint8", "column", "short", "list", "floats", "out_of_range", "negative", "unknown", "scalar"):
        return labels
    return targets if labels.dim() == 1 else targets.clamp(min=0)


def _weights(kind: str, size: int) -> torch.Tensor | None:
    made = {"ones": torch.ones(size), "short": torch.ones(size + 1), "zero": torch.zeros(size)}
    return torch.full((size,), float("nan")) if kind == "nan" else made.get(kind)


def _inputs(kind: str, inputs: torch.Tensor) -> torch.Tensor:
    inputs = inputs.clone()
    if kind == "one_nan":
        inputs[:1] = float("nan")
    return inputs * {"nan": float("nan"), "inf": float("inf"), "huge": 1e30}.get(kind, 1.0)


def _forward(model: nn.Module, inputs: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "unused":
        model(inputs)
    if kind in ("eval", "no_grad"):
        was_training = model.training
        model.train(was_training and kind != "eval")
        with torch.no_grad() if kind == "no_grad" else nullcontext():
            model(inputs)
        model.train(was_training)
    if kind == "eval_whole":
        was_training = model.training
        model.eval()
        try:
            return model(inputs)
        finally:
            model.train(was_training)
    if kind == "none":
        return inputs.flatten(1)[:, :NUM_CLASSES].clone().requires_grad_()
    return model(inputs)


def _loss(task: str, outputs: torch.Tensor, targets: torch.Tensor, kind: str) -> torch.Tensor:
    reduction = "sum" if kind == "sum" else "mean"
    if task == "multilabel":
        loss = F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction=reduction)
    else:
        loss = F.cross_entropy(outputs, targets, reduction=reduction)
    return loss * {"nan": float("nan"), "inf": float("inf"), "zero": 0.0, "scaled": 0.25}.get(kind, 1.0)


def _random_state() -> Any:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_random_state(state: Any) -> None:
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])


def _state_of(side: Side) -> dict[str, Any]:
    """All that the training depends on; tensors as bytes, so that NaNs are equal to themselves."""
    found: dict[str, Any] = {f"model.{key}": value for key, value in side.model.state_dict().items()}
    for name, parameter in side.model.named_parameters():
        found[f"grad.{name}"] = parameter.grad
        found[f"requires_grad.{name}"] = parameter.requires_grad
    for name, module in side.model.named_modules():
        found[f"mode.{name}"] = module.training
    for number, values in enumerate(side.optimizer.state.values()):
        found |= {f"optimizer.{number}.{name}": value for name, value in values.items()}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in side.optimizer.param_groups]
    torch_state, numpy_state, python_state = side.randomness
    found |= {"groups": groups, "torch rng": torch_state, "python rng": python_state}
    found["numpy rng"] = (numpy_state[1].tobytes(), *numpy_state[2:])
    return {name: _bytes(value) if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def _bytes(value: torch.Tensor) -> bytes:
    return bytes(value.detach().contiguous().view(-1).view(torch.uint8).numpy()) if value.numel() else b""


@dataclass(frozen=True)
class Held:
    """What a process holds: to be the same once every monitor is closed."""

    threads: frozenset[str]
    files: int
    handlers: tuple[Any, ...]

    @classmethod
    def now(cls) -> Held:
        names = frozenset(thread.name for thread in threading.enumerate() if "sgoif" in thread.name)
        handlers = tuple(signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        return cls(names, len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0, handlers)

    def check_nothing_added(self) -> None:
        """Ask for nothing more than there was, soon; a monitor that was dropped earlier may be gone by now."""
        until = time.monotonic() + 5
        while (found := Held.now()._added_to(self)) and time.monotonic() < until:
            time.sleep(0.05)  # a thread that has done its work is still about to end
        assert not found, found

    def _added_to(self, before: Held) -> list[str]:
        added = [f"thread {name}" for name in self.threads - before.threads]
        added += [f"{self.files} open files, {before.files} before"] if self.files > before.files else []
        usual = (signal.SIG_DFL, signal.default_int_handler)
        return added + [
            f"handler {now}" for now, then in zip(self.handlers, before.handlers) if now not in (then, *usual)
        ]


def hooks_of(model: nn.Module) -> int:
    """How many hooks hang on a model."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def unfinished_files(folder: Path) -> list[str]:
    """Files that a writer has begun and not finished."""
    return [str(path) for path in folder.rglob("*") if path.name.endswith(".tmp")] if folder.is_dir() else []


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow, as on a full disk; the operating system itself refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def in_forked_child(action: Callable[[], Any], timeout_s: float = 20.0) -> int:
    """Run something in a forked child and return its exit code; killed, with -9, where it takes too long."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -9


def train_until_killed(connection: Any, out: str, settings: dict[str, Any]) -> None:
    """Train in a process of its own until it is killed; tell after every step how many rows the monitor was given."""
    torch.set_num_threads(1)
    twins = Twins("mlp", "classification")
    side = twins.watched
    settings = grouped({"plan": PLAN, "anchors": make_data(24, seed=2), **settings})
    side.monitor = sgoif.watch(side.model, side.optimizer, train_size=TRAIN_SIZE, out=out, **settings)
    connection.send(0)
    seed = 0
    while True:
        twins._run(side, Batch(seed=seed))
        connection.send(side.offered)
        seed += 1
