"""No public entry leaves a trace: generators, flags, hooks, modes, buffers, parameters and gradients are as found."""

import random
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import DataLoader, Dataset

import sgoif
from sgoif.scanning.loop import scan
from tests.grouped import grouped

CLASSES, SIZE, HELD = 3, 90, 120
HOOKS = [name for name in vars(nn.Linear(1, 1)) if name.endswith("_hooks")]
GLOBAL_HOOKS = [name for name in vars(torch_module) if name.startswith("_global_") and name.endswith("_hooks")]


class Augmented(Dataset):
    """Items are made with random numbers of all three libraries, labels too where they are read from items."""

    def __init__(self, start, stop, with_labels=True):
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(SIZE + HELD) % CLASSES
        pixels = torch.randn(SIZE + HELD, 3, 6, 6, generator=generator) + labels[:, None, None, None]
        self.pixels, self.classes, self.with_labels = pixels[start:stop], labels[start:stop], with_labels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        noise = torch.rand(()) + float(np.random.rand()) + random.random()
        pixels = self.pixels[index] + 0.01 * noise
        return (pixels, int(self.classes[index])) if self.with_labels else pixels


TRAIN, HOLDOUT = Augmented(0, SIZE), Augmented(SIZE, SIZE + HELD)
QUERIES = Augmented(SIZE, SIZE + 4, with_labels=False)


def network():
    torch.manual_seed(1)
    body = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.3), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(24, CLASSES)).train()
    model[1].eval()  # a part that the user froze
    model(torch.randn(8, 3, 6, 6)).sum().backward()  # gradients that are not ours
    return model


def state_of(model):
    """All that a visitor could have moved, by name."""
    _, words, place, *rest = np.random.get_state()
    found = {
        "torch": torch.get_rng_state().tolist(),
        "numpy": (words.tolist(), place, rest),
        "python": random.getstate(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "warnings": list(warnings.filters),
        "global hooks": {name: len(getattr(torch_module, name)) for name in GLOBAL_HOOKS},
    }
    for name, part in model.named_modules():
        found[f"mode of {name}"] = part.training
        found[f"hooks of {name}"] = {hook: len(getattr(part, hook)) for hook in HOOKS}
        found[f"attributes of {name}"] = sorted(vars(part))
    for name, value in model.named_parameters():
        found[f"parameter {name}"] = (value.tolist(), value.requires_grad, value._version)
        found[f"gradient of {name}"] = None if value.grad is None else value.grad.tolist()
        found[f"tensor hooks of {name}"] = (len(value._backward_hooks or ()), value._post_accumulate_grad_hooks)
    for name, value in model.named_buffers():
        found[f"buffer {name}"] = value.tolist()
    return found


def moved(before, after):
    return [name for name in before if before[name] != after[name]]


@pytest.fixture(scope="module")
def finished():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(TRAIN.pixels), TRAIN.classes).backward()
        optimizer.step()
    watched(network())  # imports parts of torch that set warning filters of their own
    return model, sgoif.audit(model, TRAIN, anchors=HOLDOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(36):
        path = root / f"class-{number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    np.save(root.parent / "features.npy", rng.normal(size=(36, 6)).astype(np.float32))
    return root


def train_a_step(monitor, model, optimizer):
    pixels, labels = TRAIN.pixels[:30], TRAIN.classes[:30]
    optimizer.zero_grad()
    with monitor.step(torch.arange(30), labels):
        F.cross_entropy(model(pixels), labels).backward()
    optimizer.step()


def watched(model, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = sgoif.watch(model, optimizer, anchors=HOLDOUT, train_size=SIZE, **grouped(settings))
    return monitor, optimizer


def tags(dataset):
    return dataset.pixels, F.one_hot(dataset.classes, CLASSES).float()


def of_watch(**settings):
    return lambda model, run: sgoif.watch(model, **{"anchors": HOLDOUT, "train_size": SIZE, **settings})


def of_audit(dataset=TRAIN, anchors=HOLDOUT, **settings):
    return lambda model, run: sgoif.audit(model, dataset, anchors=anchors, **settings)


def of_attribute(queries=QUERIES, **settings):
    return lambda model, run: sgoif.attribute(model, TRAIN, queries, **settings)


ENTRIES = {
    "watch": of_watch(),
    "watch, loader": of_watch(anchors=DataLoader(HOLDOUT, batch_size=7, shuffle=True)),
    "watch, layers": of_watch(method=sgoif.Method(layers=["0"])),
    "watch, tags": of_watch(anchors=tags(HOLDOUT), task="multilabel"),
    "audit": of_audit(keep_anchors=True),
    "audit, loaders": of_audit(DataLoader(TRAIN, shuffle=True), DataLoader(HOLDOUT, shuffle=True)),
    "audit, tags": of_audit(tags(TRAIN), tags(HOLDOUT), task="multilabel"),
    "attribute": of_attribute(HOLDOUT),
    "attribute, no labels": of_attribute(),
    "attribute, all layers": of_attribute(layers=["0", "6"]),
    "attribute, gauss-newton": of_attribute(curvature="gauss-newton"),
    "split": lambda model, run: sgoif.split(TRAIN),
    "ood_scorer": lambda model, run: run.ood_scorer(model, HOLDOUT)(TRAIN),
    "ood_scorer, loader": lambda model, run: run.ood_scorer(model, DataLoader(HOLDOUT, shuffle=True))(TRAIN),
    "shift_sentinel": lambda model, run: run.shift_sentinel(model, HOLDOUT, batch_size=4).update(TRAIN.pixels[:4]),
    "shift_sentinel.watch": lambda model, run: list(run.shift_sentinel(model, HOLDOUT, batch_size=4).watch(TRAIN)),
    "poison_suspects": lambda model, run: run.poison_suspects(TRAIN.pixels[:2], 1, model=model, dataset=TRAIN),
    "unlearning_plan": lambda model, run: run.unlearning_plan(
        [1, 2], model=model, dataset=TRAIN, holdout=HOLDOUT
    ).predictions(QUERIES),
    "findings": lambda model, run: (run.label_issues(), run.duplicates()),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_leaves_everything_as_found(name, finished):
    trained, run = finished
    model = network()
    model.load_state_dict(trained.state_dict())
    before = state_of(model)
    ENTRIES[name](model, run)
    assert moved(before, state_of(model)) == []


@pytest.mark.usefixtures("quick_heads")
@pytest.mark.parametrize("more", [{"features": "features.npy"}, {"backbone": "tests.test_neutrality:backbone"}])
def test_a_scan_leaves_everything_as_found(folder, more):
    settings = {**more, "features": str(folder.parent / "features.npy")} if "features" in more else more
    model = network()
    scan(folder, **settings)  # imports what is imported once, with whatever that does to warnings
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    before = state_of(model)
    scan(folder, **settings)
    assert moved(before, state_of(model)) == []


def backbone():
    return lambda pictures: torch.as_tensor(np.asarray(pictures)).float().flatten(1)[:, :6] + torch.rand(())


def test_what_is_asked_of_a_monitor_between_steps_leaves_everything_as_found(tmp_path):
    model = network()
    monitor, optimizer = watched(model, out=str(tmp_path / "run"), planned_steps=4)
    for _ in range(3):
        train_a_step(monitor, model, optimizer)
    actions = {
        "snapshot": lambda: monitor.snapshot(str(tmp_path / "snapshot.safetensors")),
        "weights": lambda: monitor.weights(torch.arange(30)),
        "state_dict": monitor.state_dict,
        "load_state_dict": lambda: monitor.load_state_dict(monitor.state_dict()),
        "counters": lambda: (monitor.counters, monitor.reading, str(monitor.plan), monitor.faults),
        "flush": monitor.flush,
        "close": lambda: monitor.close(TRAIN),
        "load": lambda: sgoif.load(str(tmp_path / "run")).label_issues(),
    }
    for name, action in actions.items():
        before = state_of(model)
        action()
        assert moved(before, state_of(model)) == [], name
    assert monitor.faults == {}


@pytest.mark.parametrize("settings", [{}, {"layers": ["0"]}, {"solver": "direct", "probe": False}])
def test_steps_leave_the_training_bit_identical(settings):
    def trained(is_watched):
        model = network()
        torch.manual_seed(2), np.random.seed(2), random.seed(2)
        if is_watched:
            monitor, optimizer = watched(model, plan=sgoif.Plan(refresh_every=2, observe_every=1), **settings)
        else:
            monitor, optimizer = None, torch.optim.SGD(model.parameters(), lr=0.01)
        states = []
        for _ in range(6):
            items = [TRAIN[i] for i in torch.randperm(SIZE)[:30].tolist()]
            pixels, labels = torch.stack([item[0] for item in items]), torch.tensor([item[1] for item in items])
            optimizer.zero_grad()
            with nullcontext() if monitor is None else monitor.step(torch.arange(30), labels):
                F.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
            states.append(state_of(model))
        return states, monitor

    (bare, _), (seen, monitor) = trained(False), trained(True)
    assert [moved(*pair) for pair in zip(bare, seen)] == [[]] * 6
    assert monitor.faults == {}
    assert monitor.counters["visits"] == 180
