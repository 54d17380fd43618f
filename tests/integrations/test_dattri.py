"""Our attributor beside dattri's own, in its sign and order."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

pytest.importorskip("dattri")

from dattri.algorithm.influence_function import IFAttributorExplicit
from dattri.metric import lds
from dattri.task import AttributionTask

from sgoif.errors import SgoifError
from sgoif.integrations.dattri import InfluenceAttributor


def examples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > 0.3).long() + (inputs[:, 1] > 0).long())


@pytest.fixture(scope="module")
def task():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))

    def loss(params, batch):
        inputs, labels = batch
        return F.cross_entropy(functional_call(model, params, (inputs,)), labels)

    checkpoints = [nn.Sequential(nn.Linear(4, 3)).state_dict() for _ in range(2)]
    return AttributionTask(loss_func=loss, model=model, checkpoints=checkpoints)


def test_on_a_linear_model_it_is_dattris_explicit_inverse(task):
    train, test = examples(30, seed=0), examples(7, seed=1)
    loaders = DataLoader(train, batch_size=30), DataLoader(test, batch_size=7)
    theirs = IFAttributorExplicit(task, regularization=0.1)
    theirs.cache(loaders[0])
    settings = {"damping": 0.1, "tolerance": 1e-6, "products": 100}
    ours = InfluenceAttributor(task, curvature="gauss-newton", curvature_settings=settings)
    ours.cache(loaders[0])
    found = ours.attribute(*loaders)
    torch.testing.assert_close(found, theirs.attribute(*loaders), rtol=1e-3, atol=1e-4)
    subsets = torch.rand(12, 30).argsort(1)[:, :15]
    outputs = -torch.stack([found[rows].sum(0) for rows in subsets])  # what a perfect attribution predicts
    assert lds(found, (outputs, subsets))[0].abs().min() > 0.99


def test_a_part_of_the_cached_set_and_shuffled_loaders_are_refused(task):
    train, test = examples(12, seed=0), DataLoader(examples(3, seed=1))
    ours = InfluenceAttributor(task, curvature="identity")
    ours.cache(DataLoader(train))
    with pytest.raises(SgoifError, match="12 training examples"):
        ours.attribute(DataLoader(examples(5, seed=0)), test)
    with pytest.raises(SgoifError, match="shuffle=False"):
        ours.attribute(DataLoader(train, shuffle=True), test)
    with pytest.raises(SgoifError, match="shuffle=False"):
        ours.attribute(DataLoader(train, sampler=SubsetRandomSampler(range(12))), test)
