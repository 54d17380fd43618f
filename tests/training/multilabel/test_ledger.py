"""Canaries of tags: no example is judged by its own tags, and many tags cost no more than 64."""

import numpy as np
import torch

from sgoif.influence.holdout import MultilabelHoldOut
from sgoif.training.multilabel.engine import MultilabelEngine
from sgoif.training.multilabel.ledger import MultilabelLedger, _tags_to_try
from tests.training.multilabel.worlds import data, fresh


def looked(holdout):
    """A ledger after one look at the whole hold-out by one fixed model."""
    from sgoif.gradients import Capture, find_head

    model = fresh()
    head = find_head(model, lambda: model(holdout[0][:2]))
    engine = MultilabelEngine(head, MultilabelHoldOut(holdout), per_refresh=len(holdout[0]))
    features = model[:-1].eval()(holdout[0]).detach()
    engine.measure(torch.cat([features, torch.ones(len(features), 1)], 1), model(holdout[0]).detach())
    engine.absorb()
    ledger = MultilabelLedger(engine, trusted=True)
    ledger.add(engine.refresh(model, Capture([head]), model), engine, trust=0.5)
    return ledger


def test_an_example_is_never_judged_by_its_own_tags():
    _, _, _, (inputs, tags) = data()
    before = looked((inputs, tags))
    changed = tags.clone()
    mine = torch.from_numpy(before.fold == 0)
    changed[mine] = 1 - changed[mine]
    after = looked((inputs, changed))
    assert mine.any() and not mine.all()
    # under either bit a pair's signals depend on the other fold's tags alone; its own decide which canary is a flip
    np.testing.assert_array_equal(before._total[mine], after._total[mine])
    assert np.abs(before._total[~mine] - after._total[~mine]).max() > 1e-3


def test_both_sides_have_sound_canaries_and_flips():
    _, _, _, holdout = data()
    ledger = looked(holdout)
    for bit in (0, 1):
        found = ledger.canaries(bit)
        own = holdout[1].numpy()[found.holdout_row, found.assigned_label]
        np.testing.assert_array_equal(found.is_flip, own != bit)
        assert len(found) == holdout[1].numel()


def test_among_many_tags_64_stand_for_all():
    rng = np.random.default_rng(0)
    targets = (rng.random(5_000) < 0.002).astype(float)
    believed = rng.normal(size=5_000)
    tags, weights = _tags_to_try(targets, believed, 64, rng)
    assert len(np.unique(tags)) == 64
    assert set(np.flatnonzero(targets)) <= set(tags)
    absent = np.flatnonzero(targets == 0)
    assert set(absent[np.argsort(-believed[absent])[:16]]) <= set(tags)
    np.testing.assert_allclose(weights.sum(), 5_000)
    most = np.ones(70)
    most[:3] = 0  # nearly all tags: there are not enough others to draw
    assert len(np.unique(_tags_to_try(most, rng.normal(size=70), 64, rng)[0])) == 64
