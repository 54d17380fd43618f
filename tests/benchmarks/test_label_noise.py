"""The end-to-end slice: quick mechanics by default, the full figures by hand."""

import pytest
import torch

from benchmarks import label_noise

SETTINGS = {"setting": "pair-20", "holdout": "trusted", "split": "development", "leak": 800.0}


@pytest.mark.data
def test_a_short_run_reports_every_signal_and_repeats_itself():
    first, again = (label_noise.run(seed=0, epochs=2, examples=500, **SETTINGS) for _ in range(2))
    for name in ("harm", "worst", "harm solved", "worst solved", "harm identity", "worst identity", "aum", "loss"):
        assert first[name] == again[name]
        assert first[name]["errors"] == pytest.approx(100, abs=15)
    assert len(first["residual_by_epoch"]) == 2


@pytest.mark.data
@pytest.mark.slow
def test_the_development_figures_are_reproduced_within_three_points():
    torch.set_num_threads(1)
    report = label_noise.run(seed=0, epochs=10, examples=20_000, **SETTINGS)
    for name, expected in (("harm", 69), ("worst", 74), ("aum", 38)):
        assert abs(report[name]["ap"] - expected) <= 3, f"{name}: {report[name]['ap']:.1f}, expected {expected} +- 3"
    assert report["worst"]["p@1%"] >= 97
