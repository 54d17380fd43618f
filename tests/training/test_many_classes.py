"""Many classes: no direction per class, the same scores, and no host synchronisation."""

import pytest
import torch
import torch.nn.functional as F

from tests.training.loops import GroupNormNet, data, fresh, train, watch


def test_two_hundred_classes_use_no_direction_per_class():
    classes = 200
    train_set, holdout = data(num=60, held=400, classes=classes)
    model = fresh(lambda: GroupNormNet(classes))
    monitor = watch(model, holdout, train_size=60)
    train(model, train_set, monitor, epochs=4)
    assert monitor.counters["faults"] == 0
    sizes = [t.numel() for t in monitor.engine.tracker.directions.values()]
    assert max(sizes) == classes * 7
    run = monitor.close()
    assert (run.table["suggested_label"] != run.table["given_label"]).all()


def test_the_dual_form_equals_the_direct_solve():
    """The per-class scores above 64 classes are those of a direction per class, solved with the same curvature."""
    from sgoif.gradients import Capture, ExactSpace, select_layers
    from sgoif.influence import DualAnchors

    torch.manual_seed(0)
    model, classes = GroupNormNet(5).float(), 5
    (pixels, labels), (held, held_labels) = data(num=20, held=15, classes=5, dtype=torch.float32)
    (layer,) = select_layers(model, ["fc"])
    space = ExactSpace(layer)

    def captured(x, y):
        with Capture([layer]) as capture:
            F.cross_entropy(model(x), y, reduction="sum").backward()
        return capture.calls[0]

    from sgoif.curvature import create

    train_call, held_call = captured(pixels, labels), captured(held, held_labels)
    curvature = create("kfac", {"fc": layer.shape})
    curvature.observe([space.rows(train_call)])
    dual = DualAnchors(15, classes, layer.shape.inputs, held_labels, classes)
    dual.update(torch.arange(15), space.rows(held_call), torch.ones(15))
    dual.factorise(curvature.operator("fc"))
    member = F.one_hot(held_labels, classes).float()
    g = {"fc": space.combine(held_call, member / member.sum(0))}
    expected = space.dots(train_call, curvature.solve(g)["fc"])
    torch.testing.assert_close(dual.dots(space.rows(train_call)), expected, rtol=1e-3, atol=1e-5)
    plain = space.dots(train_call, g["fc"])
    torch.testing.assert_close(dual.dots(space.rows(train_call), identity=True), plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [4, 100])
def test_a_scored_step_runs_on_the_meta_device_where_host_syncs_raise(classes):
    from sgoif.gradients import Capture, select_layers
    from sgoif.influence import HoldOut
    from sgoif.records import SIGNALS
    from sgoif.training.engine import Engine, Method

    model = GroupNormNet(classes).to("meta")
    (head,) = select_layers(model, ["fc"])
    holdout = HoldOut((torch.zeros(2 * classes, 3, 8, 8), torch.arange(2 * classes) % classes), device="meta")
    settings = Method(probe=False, planned_steps=10)
    engine = Engine(head, [], holdout, settings, train_size=10, per_refresh=4)
    capture = Capture([head], keep_outputs=["fc"])
    labels = torch.zeros(6, dtype=torch.int64, device="meta")
    for _ in range(3):
        with capture:
            F.cross_entropy(model(torch.zeros(6, 3, 8, 8, device="meta")), labels).backward()
        with torch.no_grad():
            packed = engine.score(capture.calls, capture.calls[0].output, labels)
            engine.measure(capture.calls)
            engine.absorb()
            engine.advance(0.1, 0.0)
    assert packed.shape == (6, len(SIGNALS))
