"""Trainings that bear wrong labels: the losses are those of their papers, and every method goes from end to end."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from benchmarks import curriculum, loops, robust
from benchmarks.review import World


def noisy_world(num=120, held=40):
    generator = torch.Generator().manual_seed(0)
    clean = np.arange(num) % 10
    images = torch.randn(num, 3, 32, 32, generator=generator) + torch.from_numpy(clean).view(-1, 1, 1, 1) / 5
    given = np.where(np.arange(num) % 6 == 0, (clean + 1) % 10, clean)
    is_held = np.arange(num) >= num - held
    return World(TensorDataset(images, torch.from_numpy(given)), given, clean, is_held, tuple("0123456789"))


def test_symmetric_cross_entropy_is_that_of_the_paper():
    torch.manual_seed(0)
    logits, labels = torch.randn(7, 10, dtype=torch.float64), torch.arange(7)
    batch = loops.Batch(0, 0, labels, logits, labels)
    reverse = -(logits.softmax(1) * F.one_hot(labels, 10).double().clamp(min=1e-4).log()).sum(1).mean()
    expected = 0.1 * F.cross_entropy(logits, labels) + reverse
    torch.testing.assert_close(robust._symmetric(lambda inputs: inputs, batch, np.random.default_rng(0)), expected)


def test_mixup_blends_targets_as_it_blends_pictures():
    logits, labels = torch.eye(4) * 3, torch.arange(4)
    seen = []
    batch = loops.Batch(0, 0, labels, logits[:, None, None, :], labels)
    rng = np.random.default_rng(2)
    loss = robust._mixup(1.0)(lambda inputs: seen.append(inputs[:, 0, 0]) or inputs[:, 0, 0], batch, rng)
    target = seen[0] / 3  # one-hot labels, blended alike
    torch.testing.assert_close(loss, -(target * seen[0].log_softmax(1)).sum(1).mean())
    assert ((target > 0).sum(1) == 2).any()


@pytest.mark.parametrize("method", robust.METHODS)
def test_every_method_trains_on_what_is_given(method):
    world = noisy_world()
    models, told = robust.train_by(method, world, 2, seed=0)
    start = robust.fresh_model(0).state_dict()
    assert len(models) == (2 if method == "co-teaching" else 1)
    for model in models:
        assert all(torch.isfinite(value).all() for value in model.state_dict().values())
        assert any(not torch.equal(value, start[name]) for name, value in model.state_dict().items())
    if method.startswith("ours"):
        assert 0 < told["weight_of_wrong"] <= 1 and 0 < told["weight_of_right"] <= 1


def test_the_table_pairs_seeds_and_leaves_out_development(monkeypatch):
    def line(method, seed, accuracy, split="reported"):
        settings = {"setting": "pair-20", "method": method, "split": split}
        return {"settings": settings, "seed": seed, "accuracy": accuracy, "cpu_s": 100.0 + seed, "by_class": [0.5] * 10}

    rows = [line("plain", 1, 0.70), line("plain", 2, 0.72), line("ours", 2, 0.77), line("ours", 0, 0.1, "development")]
    monkeypatch.setattr(curriculum, "latest", lambda _: rows)
    lines = curriculum.accuracy_table().splitlines()
    assert lines[2] == "| pair-20 (20%) | plain training | 71.0 (70.0, 72.0) |  |  |"
    assert lines[3].endswith("| 77.0 (77.0) | +5.0 | 1.00 |") and len(lines) == 4
