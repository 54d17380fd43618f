"""The loop from review to retraining: answers arrive in the labels that are trained on."""

import numpy as np
import pytest

from benchmarks import review


@pytest.mark.data
@pytest.mark.usefixtures("weak_models_judge", "narrow_networks")
def test_a_short_loop_mends_what_was_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(review, "run_folder", lambda: tmp_path / "review")
    setup = review.Setup(setting="sym-40", split="development", examples=3000, held_per_class=50, epochs=4)
    monkeypatch.setattr(review, "retrained_accuracy", lambda images, labels, setup: 0.5)  # minutes otherwise
    world = review.make_world(setup)
    run = review.finished_run(world, setup)
    assert review.finished_run(world, setup) == run
    found = review.orders(world, run, 1)
    assert all(len(order) == len(set(order.tolist())) == len(found["ours"]) for order in found.values())
    said = review.answers(world, 1)
    assert abs((said != world.clean).mean() - review.SLIPS) < 0.02
    wrong = world.given != world.clean
    for order in review.ORDERS:
        looked_at = found[order][:500]
        row = review.measure(world, setup, order, 500)
        assert row["found"] == wrong[looked_at].sum()
        mended = np.where(np.isin(np.arange(3000), looked_at), said, world.given)
        assert row["wrong_labels"] == (mended != world.clean).sum()
        assert row["counts"]["unreviewed"] == len(found["ours"]) - 500
    assert review.measure(world, setup, "truth", 0)["wrong_labels"] == 0
    assert review.measure(world, setup, "none", 0)["wrong_labels"] == wrong.sum()
