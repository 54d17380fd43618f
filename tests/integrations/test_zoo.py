"""Models as timm and torchvision make them, in plain torch: the head is found, and the weights stay as without us."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import sgoif
import tests.integrations.torchvision_operators  # noqa: F401
from sgoif.errors import HeadError
from tests.cases import images

TIMM = {
    "resnet18": {},
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "depth": 1},
    "efficientnet_b0": {},
    "convnext_atto": {},
    "mobilenetv3_small_050": {},
    "swin_tiny_patch4_window7_224": {"img_size": 32, "window_size": 4, "depths": (1, 1), "num_heads": (3, 6)},
}
TORCHVISION = ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "regnet_y_400mf")


def from_timm(name):
    timm = pytest.importorskip("timm", reason="timm is not installed: pip install --no-deps timm torchvision")
    return timm.create_model(name, num_classes=4, pretrained=False, **TIMM[name])


def from_torchvision(name):
    models = pytest.importorskip("torchvision").models
    return models.get_model(name, weights=None, num_classes=4)


def trained(make, name, is_watched):
    pixels, labels = images(batch=36, size=32, seed=0, classes=4)
    torch.manual_seed(0)
    model = make(name).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    anchors = (pixels[24:].float(), torch.arange(12) % 4)
    monitor = None
    if is_watched:
        plan = sgoif.Plan(refresh_every=2, examples_per_refresh=8, observe_every=1)
        monitor = sgoif.watch(model, optimizer, anchors=anchors, train_size=24, budget=sgoif.Budget(plan=plan))
    for part in torch.arange(24).split(8):
        optimizer.zero_grad()
        with nullcontext() if monitor is None else monitor.step(part, labels[part]):
            F.cross_entropy(model(pixels[part].float()), labels[part]).backward()
        optimizer.step()
    return model, monitor


@pytest.mark.parametrize(
    ("make", "name"),
    [*((from_timm, name) for name in TIMM), *((from_torchvision, name) for name in TORCHVISION)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_model_is_watched_as_it_is(make, name):
    bare, _ = trained(make, name, is_watched=False)
    watched, monitor = trained(make, name, is_watched=True)
    for (key, one), two in zip(bare.state_dict().items(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, two), key
    assert monitor.faults == {}
    run = monitor.close()
    assert len(run.visits["id"]) == 24
    assert abs(run.visits["harm"]).max() > 0


def test_a_head_that_is_no_linear_map_of_features_is_refused_before_the_first_step():
    """SqueezeNet averages what a ReLU left of its last convolution."""
    with pytest.raises(HeadError, match="No layer produces"):
        trained(from_torchvision, "squeezenet1_1", is_watched=True)
