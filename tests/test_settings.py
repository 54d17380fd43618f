"""Settings of ``watch`` and ``audit``: three groups, and keywords from before, which warn."""

import pytest
import torch
from torch import nn

import sgoif
from sgoif.errors import SgoifError
from sgoif.settings import group_settings

HELD = torch.randn(12, 4), torch.arange(12) % 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def test_keywords_from_before_warn_and_say_where_they_moved():
    plan = sgoif.Plan(refresh_every=7)
    with pytest.warns(DeprecationWarning) as warned:
        monitor = sgoif.watch(
            network(), anchors=HELD, train_size=40, plan=plan, gate="none", loss_reduction="sum", num_classes=3
        )
    said = [str(item.message) for item in warned]
    assert said[0].startswith("plan= of watch() has moved: pass budget=sgoif.Budget(plan=...)")
    assert said[1].startswith("gate= of watch() has moved: pass method=sgoif.Method(gate=...)")
    assert said[2].startswith("loss_reduction= of watch() has moved: pass loss=sgoif.Loss(reduction=...)")
    assert said[3].startswith("num_classes= of watch() is found from the model")
    assert all(item.filename == __file__ for item in warned)
    assert monitor.governor.plan.refresh_every == 7 and monitor.governor.fixed
    assert monitor.engine.settings.gate_settings.mode == "none" and monitor.loss.reduction == "sum"


def test_old_and_new_give_the_same_audit():
    examples = torch.randn(30, 4), torch.arange(30) % 3
    with pytest.warns(DeprecationWarning, match="curvature= of audit"):
        old = sgoif.audit(network(), examples, anchors=HELD, curvature="diagonal")
    new = sgoif.audit(network(), examples, anchors=HELD, method=sgoif.Method(curvature="diagonal"))
    assert old.table["harm"].tolist() == new.table["harm"].tolist()


def test_groups_keep_what_they_were_given_beside_a_former_keyword():
    with pytest.warns(DeprecationWarning):
        found = group_settings("watch", {"accumulate": 4}, loss=sgoif.Loss(reduction="sum"))
    assert (found.loss.reduction, found.loss.accumulate) == ("sum", 4)


def test_unknown_names_raise():
    with pytest.raises(TypeError, match=r"watch\(\) got an unexpected keyword argument 'curvatur'"):
        sgoif.watch(network(), anchors=HELD, train_size=40, curvatur="kfac")
    with pytest.raises(SgoifError, match="solver must be one of"):
        sgoif.Method(solver="cg")
    with pytest.raises(SgoifError, match="gate must be one of"):
        sgoif.Method(gate="open")
