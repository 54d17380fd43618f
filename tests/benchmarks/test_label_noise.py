"""The end-to-end slice: quick mechanics by default, the full figures by hand."""

import numpy as np
import pytest

from benchmarks import controller, label_noise
from benchmarks.trainings import Setup, train
from sgoif.influence import GateSettings


@pytest.mark.data
@pytest.mark.usefixtures("narrow_networks")
def test_a_short_run_reports_every_signal_and_repeats_itself():
    setup = Setup(epochs=2, examples=1000)
    trainings = [train(setup, cached=False) for _ in range(2)]
    first, again = (label_noise.report_on(found) for found in trainings)
    assert first["signals"] == again["signals"]
    assert first["audit"] == again["audit"]
    for name in label_noise.SIGNALS:
        assert first["signals"][name]["all"]["errors"] == pytest.approx(200, abs=30)
    # the gate of the run itself, replayed from its residuals
    confidence = controller.replay(trainings[0].residual, GateSettings())
    weights = controller.visit_weights(trainings[0], confidence)
    np.testing.assert_allclose(weights["harm"], trainings[0].visits["confidence"], rtol=1e-3, atol=1e-8)
    np.testing.assert_allclose(weights["worst"], trainings[0].visits["confidence_worst"], rtol=1e-3, atol=1e-8)


@pytest.mark.data
@pytest.mark.slow
def test_the_development_figures_are_reproduced_within_three_points():
    report = label_noise.report_on(train(Setup()))["signals"]
    for name, expected in (("harm", 69), ("worst", 74), ("margin", 38)):
        found = report[name]["second half"]["ap"]
        assert abs(found - expected) <= 3, f"{name}: {found:.1f}, expected {expected} +- 3"
    assert report["worst"]["second half"]["p@1%"] >= 97
