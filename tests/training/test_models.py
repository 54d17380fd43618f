"""Models: compiled in part, with inputs and results of any form."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from sgoif.errors import SgoifError
from tests.training.loops import GroupNormNet, TwoParts, batches, data, fresh, run_twins, watch


def loop_over(train_set, call=lambda model, x: model(x), count=10):
    def loop(model, step):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for ids, x, y in batches(train_set, count=count):
            with step(ids, y):
                F.cross_entropy(call(model, x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop


def test_a_compiled_backbone_before_the_head():
    train_set, holdout = data()

    def make():
        torch._dynamo.reset()
        model = TwoParts()
        model.backbone = torch.compile(model.backbone, backend="aot_eager")
        return model

    _, run = run_twins(make, loop_over(train_set, count=8), holdout)
    _, plain = run_twins(TwoParts, loop_over(train_set, count=8), holdout)
    np.testing.assert_allclose(run.visits["harm"], plain.visits["harm"], rtol=1e-4, atol=1e-6)


def compiled_whole(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_inside(model):
    return nn.Sequential(nn.Identity(), torch.compile(model, backend="eager"))


def compiled_inside_in_place(model):
    model.compile(backend="eager")
    return nn.Sequential(nn.Identity(), model)


def compiled_head(model):
    model.fc.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    "wrap", [compiled_whole, compiled_in_place, compiled_inside, compiled_inside_in_place, compiled_head]
)
def test_a_compiled_head_is_refused_with_the_way_out(wrap):
    with pytest.raises(SgoifError, match="Compile the part before the head"):
        watch(wrap(fresh(TwoParts)), data()[1])


def test_a_scored_layer_in_a_compiled_backbone_is_refused():
    model = fresh(TwoParts)
    model.backbone = torch.compile(model.backbone, backend="eager")
    with pytest.raises(SgoifError, match="score no layer of that part"):
        watch(model, data()[1], layers=["backbone._orig_mod.0"])


class DictSet(Dataset):
    """Inputs as a dictionary, the way language and multi-modal models have them."""

    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixels": self.pixels[index], "shift": torch.zeros(())}, int(self.labels[index])


class DictNet(GroupNormNet):
    def forward(self, pixels, shift):
        return super().forward(pixels + shift.sum())


@pytest.mark.parametrize("is_declared", [False, True])
def test_dictionaries_as_batches(is_declared):
    train_set, holdout = data()
    made = []

    def make():
        made.append(DictNet())
        return made[-1]

    def call(model, x):
        return model(pixels=x, shift=torch.zeros(len(x), dtype=x.dtype))

    def forward(inputs):
        return made[-1](inputs["pixels"], inputs["shift"])

    settings = {"forward": forward} if is_declared else {}
    run_twins(make, loop_over(train_set, call), DictSet(*holdout), **settings)


@dataclass
class ModelOutput:
    logits: torch.Tensor
    hidden: torch.Tensor


Pair = namedtuple("Pair", ["scores", "hidden"])


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [
        (lambda z, h: (z, h), lambda out: out[0]),
        (Pair, lambda out: out.scores),
        (lambda z, h: ModelOutput(z, h), lambda out: out.logits),
        (lambda z, h: {"logits": z, "hidden": h}, lambda out: out["logits"]),
    ],
    ids=["tuple", "named tuple", "object with logits", "dictionary with logits"],
)
def test_results_with_more_than_logits(pack, unpack):
    train_set, holdout = data()

    class Net(GroupNormNet):
        def forward(self, x):
            hidden = F.relu(self.norm(self.conv(x))).mean((2, 3))
            return pack(self.fc(hidden), hidden)

    run_twins(Net, loop_over(train_set, lambda model, x: unpack(model(x))), holdout)


def test_results_of_unknown_form_need_a_forward():
    train_set, holdout = data()
    made = []

    class Net(GroupNormNet):
        def forward(self, x):
            return {"scores": super().forward(x)}

    def make():
        made.append(Net())
        return made[-1]

    with pytest.raises(SgoifError, match="pass forward="):
        watch(fresh(make), holdout)
    call = lambda model, x: model(x)["scores"]  # noqa: E731
    run_twins(make, loop_over(train_set, call), holdout, forward=lambda x: made[-1](x)["scores"])
