"""Models with inputs and results of any form."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from sgoif.errors import SgoifError
from tests.training.loops import GroupNormNet, batches, data, fresh, make_loop, run_twins, watch


class DictNet(GroupNormNet):
    def forward(self, pixels, shift):
        return super().forward(pixels + shift.sum())


@pytest.mark.parametrize("is_declared", [False, True])
def test_dictionaries_as_batches(is_declared):
    """The way that language and multi-modal models have them."""
    train_set, holdout = data()
    items, made = [({"pixels": x, "shift": torch.zeros(())}, int(y)) for x, y in zip(*holdout, strict=True)], []

    def make():
        made.append(DictNet())
        return made[-1]

    def call(model, x):
        return model(pixels=x, shift=torch.zeros(len(x), dtype=x.dtype))

    settings = {"forward": lambda inputs: made[-1](inputs["pixels"], inputs["shift"])} if is_declared else {}
    run_twins(make, make_loop(batches(train_set), call=call), items, **settings)


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

    run_twins(Net, make_loop(batches(train_set), call=lambda model, x: unpack(model(x))), holdout)


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
    loop = make_loop(batches(train_set), call=lambda model, x: model(x)["scores"])
    run_twins(make, loop, holdout, forward=lambda x: made[-1](x)["scores"])
