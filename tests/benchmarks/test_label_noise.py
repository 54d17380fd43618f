"""The end-to-end slice: quick mechanics by default, the full figures by hand."""

import pytest

from benchmarks import label_noise

SETTINGS = {"setting": "pair-20", "holdout": "trusted", "split": "development", "seed": 0}


@pytest.mark.data
def test_a_short_run_reports_every_signal_and_repeats_itself():
    first, again = (label_noise.run(epochs=2, examples=2000, **SETTINGS) for _ in range(2))
    for name in label_noise.SIGNALS:
        assert first[name] == again[name]
        assert first[name]["all"]["errors"] == pytest.approx(400, abs=40)
    assert first["counters"]["faults"] == 0


@pytest.mark.data
@pytest.mark.slow
def test_the_development_figures_are_reproduced_within_three_points():
    report = label_noise.run(epochs=10, examples=20_000, **SETTINGS)
    for name, expected in (("harm", 69), ("worst", 74), ("margin", 38)):
        found = report[name]["second half"]["ap"]
        assert abs(found - expected) <= 3, f"{name}: {found:.1f}, expected {expected} +- 3"
    assert report["worst"]["second half"]["p@1%"] >= 97
