"""Settings of ``watch`` and ``audit``: three groups, and unknown keywords, which are refused."""

import pytest
import torch
from torch import nn

import sgoif
from sgoif.errors import SgoifError
from sgoif.settings import FROZEN_DAMPING

HELD = torch.randn(12, 4), torch.arange(12) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def test_what_cannot_be_is_refused_at_once():
    plan = sgoif.Plan()
    cases = [
        (lambda: sgoif.Loss(reduction="none"), "reduction must be 'mean' or 'sum'"),
        (lambda: sgoif.Loss(accumulate=0), "accumulate must be 1 or more"),
        (lambda: sgoif.Method(weighting="x"), "weighting must be one of equal, confidence"),
        (lambda: sgoif.Method(rank=-1), "rank is a whole number from 1 on"),
        (lambda: sgoif.Method(subspace=4.5), "subspace is a whole number from 1 on, got 4.5"),
        (lambda: sgoif.Method(sketch_rank=-1), "sketch_rank is a whole number from 0 on"),
        (lambda: sgoif.Method(curvature="kfc"), "curvature must be one of diagonal, fisher"),
        (lambda: sgoif.Method(solver="lu"), "solver must be one of"),
        (lambda: sgoif.Method(gate="open"), "gate must be one of"),
        (lambda: sgoif.Method(leak_horizon=0), "leak_horizon is a positive number"),
        (lambda: sgoif.influence.GateSettings(kappa=-1), "kappa is the tolerance"),
        (lambda: sgoif.influence.GateSettings(tau_range=(2, 1)), "tau_range is a lower and an upper end"),
        (lambda: sgoif.Method.paper(solver="cg"), "also pass refine_below=None, subspace=None, replace_every=None"),
        (lambda: sgoif.Budget(max_overhead=5), "0.05 for 5%"),
        (lambda: sgoif.Budget(max_overhead=0.05, plan=plan), "not both"),
        (lambda: sgoif.Budget(plan={}), "plan must be a sgoif.Plan"),
        (lambda: sgoif.watch(network(), anchors=HELD, train_size=40, method="direct"), "method must be a sgoif.Method"),
        (lambda: sgoif.watch(network(), anchors=HELD, train_size=40, budget=0.05), "budget must be a sgoif.Budget"),
        (lambda: sgoif.watch(network(), anchors=HELD, train_size=40, loss="sum"), "loss must be a function"),
        (lambda: sgoif.audit(network(), HELD, anchors=HELD, method=sgoif.Method(layers=["0"])), "the head alone"),
    ]
    for make, said in cases:
        with pytest.raises(SgoifError, match=said):
            make()


def test_an_audit_without_a_re_fitted_head_says_why_there_are_no_probabilities():
    examples = torch.randn(60, 4), torch.arange(60) % 3
    held = torch.randn(30, 4), torch.arange(30) % 3
    run = sgoif.audit(network(), examples, anchors=held, method=sgoif.Method(probe=False))
    assert not run.is_calibrated and "re-fitted" in run.info["no_p_reason"]


def test_unknown_names_raise_and_name_the_likely_one():
    for said, unknown in (
        (r"watch\(\) got an unexpected keyword argument 'curvatur'", {"curvatur": "kfac"}),
        (r"did you mean budget=sgoif.Budget\(max_overhead=...\)", {"max_overhed": 0.1}),
        (r"did you mean loss=sgoif.Loss\(reduction=...\)", {"reduction": "sum"}),
    ):
        with pytest.raises(TypeError, match=said):
            sgoif.watch(network(), anchors=HELD, train_size=40, **unknown)
    with pytest.raises(TypeError, match=r"audit\(\) got an unexpected keyword argument 'curvature'.*sgoif.Method"):
        sgoif.audit(network(), HELD, anchors=HELD, curvature="diagonal")


def test_a_run_names_the_method_that_was_used(tmp_path):
    x, y, model = torch.randn(60, 4), torch.arange(60) % 3, network()
    train, held = (x[:40], y[:40]), (x[40:], y[40:])
    asked = sgoif.Method(curvature="diagonal", gate="linear", layers=["0"])
    monitor = sgoif.watch(model, anchors=held, train_size=40, out=str(tmp_path / "run"), method=asked)
    with monitor.step(torch.arange(40), train[1]):
        nn.functional.cross_entropy(model(train[0]), train[1]).backward()
    known = {"curvature": "diagonal", "curvature_settings": {}, "solver": "richardson", "gate": "linear"}
    assert (
        monitor.close().info["method"] == sgoif.load(tmp_path / "run").info["method"] == {**known, "layers": ["2", "0"]}
    )
    audited = sgoif.audit(model, train, anchors=held).info["method"]
    known = {"curvature": "kfac", "curvature_settings": {}, "solver": "direct", "gate": "none"}
    assert audited == {**known, "layers": ["2"]}
    model[0].requires_grad_(False)  # frozen features are damped more, which the run says too
    frozen = sgoif.audit(model, train, anchors=held).info["method"]["curvature_settings"]
    assert frozen == {"relative_damping": FROZEN_DAMPING}
    tags = nn.functional.one_hot(y, 3).float()
    of_tags = sgoif.audit(model, (x[:40], tags[:40]), anchors=(x[40:], tags[40:]), task="multilabel").info["method"]
    assert of_tags.keys() == audited.keys() and of_tags["layers"] == ["2"]
