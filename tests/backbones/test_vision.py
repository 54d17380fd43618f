"""Models of timm, torchvision and open_clip: weights from a file, and the transforms that belong to them."""

import json

import numpy as np
import pytest
import torch

from sgoif.backbones import load_encoder
from sgoif.errors import SgoifError
from tests.backbones.tiny import pictures

SMALL = "test_resnet"  # of timm: made for tests


@pytest.fixture
def timm():
    return pytest.importorskip("timm")


def save(model, path):
    torch.save(model.state_dict(), path)
    return path


def own_transform(timm, model):
    return timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)


def test_timm_gives_pooled_features_of_weights_in_a_file(timm, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model(SMALL, num_classes=7).eval()
    encoder = load_encoder(f"timm:{SMALL}", takes="pictures", weights=save(model, tmp_path / "w.pth"))
    assert (encoder.takes, encoder.side) == ("pictures", 160)
    inputs = torch.stack([own_transform(timm, model)(one) for one in pictures()])
    with torch.inference_mode():
        expected = model.forward_features(inputs).mean((2, 3)).numpy()
    np.testing.assert_allclose(encoder.embed(pictures()), expected, rtol=1e-4, atol=1e-5)

    def fingerprint():
        return load_encoder(f"timm:{SMALL}", takes="pictures", weights=save(model, tmp_path / "w.pth")).fingerprint

    assert fingerprint() == encoder.fingerprint
    with torch.no_grad():
        next(model.parameters()).add_(1e-3)
    assert fingerprint() != encoder.fingerprint


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("crop_pct", [1.0, 0.875])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_pictures_are_transformed_as_timm_does(timm, crop_mode, crop_pct, interpolation):
    from sgoif.backbones.vision import _timm_transform

    config = {"input_size": (3, 33, 33), "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25), "crop_pct": crop_pct}
    config |= {"crop_mode": crop_mode, "interpolation": interpolation}
    theirs = timm.data.create_transform(**config, is_training=False)
    shown = pictures(((40, 57), (64, 48), (33, 33), (20, 90), (90, 21), (224, 224), (5, 4)))
    ours = _timm_transform(config, "it").stack(shown).numpy()
    expected = torch.stack([theirs(one) for one in shown]).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_weights_of_another_model_are_refused_with_what_differs(timm, tmp_path):
    other = save(timm.create_model("test_vit", num_classes=0), tmp_path / "other.pth")
    with pytest.raises(SgoifError, match=r"does not fit timm:test_resnet: of \d+ tensors \d+ are missing \(.*; .*FILE"):
        load_encoder(f"timm:{SMALL}", takes="pictures", weights=other)
    state = timm.create_model(SMALL, num_classes=0).state_dict()
    torch.save({**state, "layer9.conv.weight": torch.ones(2)}, tmp_path / "more.pth")
    with pytest.raises(SgoifError, match=r"1 do not belong to it \(layer9.conv.weight\)"):
        load_encoder(f"timm:{SMALL}", takes="pictures", weights=tmp_path / "more.pth")


@pytest.mark.parametrize("wrapped", ["module.", "_orig_mod."])
def test_weights_of_a_training_checkpoint_are_found(timm, tmp_path, wrapped):
    torch.manual_seed(1)
    model = timm.create_model(SMALL, num_classes=0).eval()
    state = {f"{wrapped}{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "checkpoint.pth")
    plain = load_encoder(f"timm:{SMALL}", takes="pictures", weights=save(model, tmp_path / "w.pth"))
    found = load_encoder(f"timm:{SMALL}", takes="pictures", weights=tmp_path / "checkpoint.pth")
    assert np.array_equal(found.embed(pictures()), plain.embed(pictures()))


class Evil:
    def __reduce__(self):
        return print, ("it ran",)


def test_a_pickle_that_runs_code_is_refused(timm, tmp_path, capsys):
    torch.save({"a": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "cut.safetensors").write_bytes(b"\x08")
    unreadable = "cannot be read as weights"
    for name, said in (("evil.pth", unreadable), ("cut.safetensors", unreadable), ("none.pth", "there is no file")):
        with pytest.raises(SgoifError, match=said):
            load_encoder(f"timm:{SMALL}", takes="pictures", weights=tmp_path / name)
    assert "it ran" not in capsys.readouterr().out


def test_what_timm_lacks_or_cannot_download_is_said(timm):
    with pytest.raises(SgoifError, match=r"timm knows no model 'resnet81'; near it are .*resnet"):
        load_encoder("timm:resnet81", takes="pictures")
    with pytest.raises(SgoifError, match=r"cannot be loaded.*cannot be downloaded, pass its weights.*--weights FILE"):
        load_encoder("timm:test_resnet.r160_in1k", takes="pictures")


def test_torchvision_gives_what_its_head_is_given(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    encoder = load_encoder("torchvision:resnet18", takes="pictures", weights=save(model, tmp_path / "w.pth"))
    assert encoder.side == 224
    transform = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    inputs = torch.stack([transform(one) for one in pictures()])
    model.fc = torch.nn.Identity()
    with torch.inference_mode():
        expected = model(inputs).numpy()
    np.testing.assert_allclose(encoder.embed(pictures()), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(SgoifError, match="knows no classifier 'fasterrcnn_resnet50_fpn'"):
        load_encoder("torchvision:fasterrcnn_resnet50_fpn", takes="pictures")


@pytest.fixture
def clip(tmp_path):
    """A CLIP of two small towers, and a file of its weights."""
    open_clip = pytest.importorskip("open_clip")
    tower = {"layers": 1, "width": 32}
    config = {
        "embed_dim": 16,
        "vision_cfg": {**tower, "head_width": 16, "image_size": 32, "patch_size": 8},
        "text_cfg": {**tower, "heads": 2, "context_length": 16, "vocab_size": 49408},
    }
    (tmp_path / "tiny-clip.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "tiny-clip.json")
    torch.manual_seed(0)
    model, _, transform = open_clip.create_model_and_transforms("tiny-clip")
    return model.eval(), transform, open_clip.get_tokenizer("tiny-clip"), save(model, tmp_path / "clip.pth")


def test_open_clip_embeds_pictures_and_texts(clip):
    model, transform, tokenizer, file = clip
    texts = ["a cat", "word " * 40]
    with torch.inference_mode():
        seen = model.encode_image(torch.stack([transform(one) for one in pictures()])).numpy()
        read = model.encode_text(tokenizer(texts)).numpy()
    encoder = load_encoder("open_clip:tiny-clip", takes="pictures", weights=file)
    assert encoder.side == 32
    np.testing.assert_allclose(encoder.embed(pictures()), seen, rtol=1e-4, atol=1e-5)
    encoder = load_encoder("open_clip:tiny-clip", takes="texts", weights=file)
    np.testing.assert_allclose(encoder.embed(texts), read, rtol=1e-4, atol=1e-5)
    assert encoder.num_truncated == 1
    with pytest.raises(SgoifError, match="no weights of tiny-clip"):
        load_encoder("open_clip:tiny-clip", takes="pictures")
    with pytest.raises(SgoifError, match="no weights 'web' of ViT-B-32; it has openai"):
        load_encoder("open_clip:ViT-B-32/web", takes="pictures")
