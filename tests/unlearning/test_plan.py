"""A plan for a user's model: examples found by id, the model untouched, the new head where it was asked for."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset, TensorDataset

import sgoif
from sgoif.errors import SgoifError
from sgoif.run import Run
from sgoif.tables import MemoryTables
from sgoif.unlearning import unlearning_plan
from sgoif.unlearning.plan import sample_of_others
from tests.training.loops import GroupNormNet, data, train


@pytest.fixture(scope="module")
def finished():
    torch.manual_seed(0)
    train_set, holdout = data()
    return train(GroupNormNet().double(), train_set), train_set, holdout


def plan_of(finished, ids=(1, 5, 9), **settings):
    model, train_set, holdout = finished
    sources = {"model": model, "dataset": train_set, "holdout": holdout, "weight_decay": 0.01}
    return Run({}, MemoryTables({})).unlearning_plan(ids, **{**sources, **settings})


def test_the_plan_says_what_the_model_with_its_head_does(finished):
    model, _, (inputs, labels) = finished
    plan = plan_of(finished)
    other = plan.apply(copy.deepcopy(model))
    with pytest.raises(SgoifError, match="not the one that the plan was made for"):
        plan.apply(other)
    found = plan.predictions(inputs)
    torch.testing.assert_close(torch.from_numpy(found.before), model(inputs).detach())
    torch.testing.assert_close(torch.from_numpy(found.after), other(inputs).detach())
    np.testing.assert_allclose(found.probabilities, other(inputs).softmax(1).detach().numpy())
    losses = [F.cross_entropy(m(inputs), labels).item() for m in (model, other)]
    everyone = plan.anchors.to_pylist()[0]
    np.testing.assert_allclose([everyone["loss"], everyone["change"]], [losses[0], losses[1] - losses[0]])
    assert plan.anchors.num_rows == 5 and sorted(plan.table["id"].to_pylist()) == [1, 5, 9]
    plan.removed_weights()["fc.weight"].zero_()
    assert model.fc.weight.any() and plan.removed_weights()["fc.weight"].any()


def test_ids_are_those_of_the_users_dataset(finished):
    inputs, labels = finished[1]
    whole = TensorDataset(inputs, labels)
    part = Subset(whole, range(10, len(labels)))
    by_position = plan_of(finished, [2, 20], dataset=(inputs[10:], labels[10:]))
    for dataset in (part, sgoif.with_ids(part)):
        found = plan_of(finished, torch.tensor([12, 30]), dataset=dataset)
        assert sorted(found.table["id"].to_pylist()) == [12, 30]
        np.testing.assert_allclose(found.table["change"], by_position.table["change"])
    named = sgoif.with_ids(whole, ids=[f"photo {i}" for i in range(len(labels))])
    assert plan_of(finished, ["photo 3"], dataset=named).table["id"].to_pylist() == ["photo 3"]


INPUTS, LABELS = data()[0]


@pytest.mark.parametrize(
    ("ids", "dataset", "message"),
    [
        ([1, 99, 4711], (INPUTS, LABELS), r"2 of 3 ids are not in the dataset: 4711, 99\."),
        ([], (INPUTS, LABELS), "no ids"),
        (range(len(LABELS)), (INPUTS, LABELS), "nothing would be left"),
        ([1], (INPUTS, LABELS + 1), "labels must lie in 0"),
        ([1], (INPUTS / torch.arange(len(INPUTS)).flip(0)[:, None, None, None], LABELS), "not finite"),
    ],
)
def test_what_cannot_be_asked_is_refused(finished, ids, dataset, message):
    with pytest.raises(SgoifError, match=message):
        plan_of(finished, ids, dataset=dataset)


def test_a_layer_that_does_not_give_the_output_is_no_head():
    two = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    rows = torch.randn(8, 2, dtype=torch.float64), torch.arange(8) % 3
    with pytest.raises(SgoifError, match="not what its layer '0' gives"):
        unlearning_plan([0], model=two, dataset=rows, holdout=rows, head="0")


def test_a_head_of_another_type_keeps_it(finished):
    model, (inputs, labels), (held, held_labels) = finished
    small = copy.deepcopy(model).float()
    sources = {"dataset": (inputs.float(), labels), "holdout": (held.float(), held_labels)}
    plan = plan_of(finished, model=small, **sources)
    assert all(value.dtype == torch.float32 for value in plan.removed_weights().values())
    np.testing.assert_allclose(plan.table["change"], plan_of(finished).table["change"], rtol=1e-3)


class Averaged(nn.Module):
    """A 1x1 convolution that is averaged, without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 4, 1, bias=False)

    def forward(self, x):
        return self.head(x).mean((2, 3))


def test_an_averaged_convolution_is_a_head_over_means(finished):
    _, (inputs, labels), (held, held_labels) = finished
    model = Averaged().double()
    linear = nn.Linear(3, 4, bias=False).double()
    linear.load_state_dict({"weight": model.head.weight.detach().flatten(1)})
    expected = plan_of(
        finished, model=linear, dataset=(inputs.mean((2, 3)), labels), holdout=(held.mean((2, 3)), held_labels)
    )
    found = plan_of(finished, model=model)
    np.testing.assert_allclose(found.table["change"], expected.table["change"])
    torch.testing.assert_close(found.removed_weights()["head.weight"].flatten(1), expected.removed_weights()["weight"])


def test_those_that_stay_are_sampled_evenly_and_without_those_that_go(finished):
    gone = np.array([0, 3, 4, 9])
    assert sample_of_others(gone, 12, 100).tolist() == [1, 2, 5, 6, 7, 8, 10, 11]
    assert sample_of_others(gone, 12, 3).tolist() == [1, 7, 11]
    far = sample_of_others(gone, 10**9, 5)
    assert far[0] == 1 and far[-1] == 10**9 - 1 and len(far) == 5
    assert plan_of(finished).certificate.distance_bound is not None
    assert plan_of(finished, num_observed=20).certificate.distance_bound is None
