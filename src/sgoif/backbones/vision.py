"""Pictures through timm, torchvision and open_clip, which also reads texts."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgoif.backbones.encoders import PictureEncoder, TextEncoder, explain_loading, make_fingerprint
from sgoif.backbones.names import Kind, Library
from sgoif.backbones.transforms import PictureTransform
from sgoif.backbones.weights import load_weights
from sgoif.errors import SgoifError
from sgoif.gradients.fingerprint import hash_weights

__all__ = ["load_open_clip", "load_timm", "load_torchvision"]

_FILE = "pass its weights as a file with --weights FILE (safetensors or a torch state dict)"


def load_timm(name: str, model_name: str, library: Library, weights: str | Path | None, device: str) -> PictureEncoder:
    """Load a timm model without its classifier: pooled features, transformed by its own ``pretrained_cfg``."""
    timm: Any = library.load()
    with explain_loading(name, library, _FILE):
        if ":" not in model_name and not timm.is_model(model_name):
            known = timm.list_models() + timm.list_pretrained()
            raise SgoifError(f"timm knows no model {model_name!r}{_suggest(model_name, known)}.")
        if weights is None and ":" not in model_name and not timm.is_model_pretrained(model_name):
            raise SgoifError(f"timm has no weights for {model_name!r}; {_FILE}.")
        model = timm.create_model(model_name, pretrained=weights is None, num_classes=0).eval()
        config = timm.data.resolve_model_data_config(model)
    if weights is not None:
        head = (model.pretrained_cfg or {}).get("classifier") or ()
        heads = tuple(f"{one}." for one in ([head] if isinstance(head, str) else head))
        load_weights(model, weights, name, is_head=lambda key: key.startswith(heads) if heads else False)
    return _encoder(name, library, model, _timm_transform(config, name), device)


def _timm_transform(config: dict[str, Any], name: str) -> PictureTransform:
    channels, height, width = config["input_size"]
    if channels != 3 or height != width:
        raise SgoifError(f"{name} takes pictures of {channels} x {height} x {width}; expected 3 x S x S.")
    fit = {"squash": "squash", "border": "longest"}.get(config["crop_mode"], "shortest")
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return PictureTransform(
        side=height,
        resize=math.floor(height / config["crop_pct"]),
        fit=fit,  # type: ignore[arg-type]
        interpolation=config["interpolation"],
        mean=mean,
        std=std,
        fill=tuple(round(255 * value) for value in mean),
    )


def load_torchvision(
    name: str, model_name: str, library: Library, weights: str | Path | None, device: str
) -> PictureEncoder:
    """Load a torchvision classifier without its last linear layer, transformed as its default weights ask."""
    torchvision: Any = library.load()
    models = torchvision.models
    with explain_loading(name, library, _FILE):
        known = models.list_models(module=models)
        if model_name not in known:
            raise SgoifError(f"torchvision knows no classifier {model_name!r}{_suggest(model_name, known)}.")
        default = models.get_model_weights(model_name).DEFAULT
        model = models.get_model(model_name, weights=default if weights is None else None).eval()
        values = default.transforms()
    head = [key for key, module in model.named_modules() if isinstance(module, nn.Linear)][-1:]
    if not head:
        raise SgoifError(f"{name} does not end with a linear layer; take its features through module:factory.")
    parent, _, last = head[0].rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Identity())
    if weights is not None:
        load_weights(model, weights, name, is_head=lambda key: key.startswith(f"{head[0]}."))
    transform = PictureTransform(
        side=values.crop_size[0],
        resize=values.resize_size[0],
        fit="shortest",
        interpolation=values.interpolation.value,
        mean=tuple(values.mean),
        std=tuple(values.std),
    )
    return _encoder(name, library, model, transform, device)


def load_open_clip(
    name: str, model_name: str, library: Library, takes: Kind, weights: str | Path | None, device: str
) -> PictureEncoder | TextEncoder:
    """Load one side of an open_clip model: ``NAME/PRETRAINED``, ``NAME`` (its first tag), or ``hf-hub:NAME``."""
    open_clip: Any = library.load()
    with explain_loading(name, library, _FILE):
        base, tag = _split_tag(open_clip, model_name, name, is_needed=weights is None)
        options: dict[str, Any] = {}
        if tag is not None and (open_clip.get_pretrained_cfg(base, tag) or {}).get("quick_gelu"):
            options["force_quick_gelu"] = True  # else such weights run with another activation than they were made for
        model = open_clip.create_model(base, pretrained=tag, load_weights=weights is None, **options).eval()
        config = open_clip.get_model_preprocess_cfg(model)
        tokenizer = open_clip.get_tokenizer(base)
    if weights is not None:
        load_weights(model, weights, name)
    if takes == "pictures":
        return _encoder(name, library, model, _clip_transform(config, name), device, model.encode_image)
    model.to(device)
    limit = int(getattr(tokenizer, "context_length", 77))

    def count_full(texts: Sequence[str]) -> int:
        return int((tokenizer(list(texts))[:, limit - 1] != 0).sum())

    return TextEncoder(
        name,
        make_fingerprint(name, library.find_version(), hash_weights(model), limit),
        lambda texts: torch.cat([model.encode_text(tokenizer(part).to(device)) for part in _parts(texts)]),
        count_full,
    )


def _split_tag(open_clip: Any, model_name: str, name: str, *, is_needed: bool) -> tuple[str, str | None]:
    """Split ``NAME/PRETRAINED``; without a tag take the first that open_clip lists."""
    if ":" in model_name:  # hf-hub:NAME, local-dir:FOLDER: both bring their configuration
        return model_name, None
    base, _, tag = model_name.partition("/")
    if base not in open_clip.list_models():
        raise SgoifError(f"open_clip knows no model {base!r}{_suggest(base, open_clip.list_models())}.")
    tags = open_clip.list_pretrained_tags_by_model(base)
    if tag and tag not in tags:
        raise SgoifError(f"open_clip has no weights {tag!r} of {base}; it has {', '.join(tags) or 'none'}.")
    if not tag and not tags and is_needed:
        raise SgoifError(f"open_clip has no weights of {base} for {name!r}; {_FILE}.")
    return base, tag or (tags[0] if tags else None)


def _clip_transform(config: dict[str, Any], name: str) -> PictureTransform:
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise SgoifError(f"{name} takes pictures of {height} x {width}; expected a square.")
    return PictureTransform(
        side=height,
        resize=height,
        fit=config.get("resize_mode", "shortest"),
        interpolation=config.get("interpolation", "bicubic"),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        fill=(config.get("fill_color", 0),) * 3,
    )


def _encoder(
    name: str,
    library: Library,
    model: nn.Module,
    transform: PictureTransform,
    device: str,
    forward: Any = None,
) -> PictureEncoder:
    made = make_fingerprint(name, library.find_version(), hash_weights(model), transform)
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return PictureEncoder(name, transform.side, made, transform.stack, forward or model, device)


def _parts(texts: list[str], size: int = 64) -> list[list[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def _suggest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 3, cutoff=0.5)
    return f"; near it are {', '.join(close)}" if close else ""
