"""Pictures and texts through transformers, and texts through sentence-transformers.

Code that a model brings along is never run: ``trust_remote_code`` stays off.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sgoif.backbones.encoders import PictureEncoder, TextEncoder, count_truncated, explain_loading, make_fingerprint
from sgoif.backbones.names import Kind, Library
from sgoif.backbones.weights import load_weights
from sgoif.errors import SgoifError
from sgoif.gradients.fingerprint import hash_weights

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["load_hf", "load_sentence"]

_TEXTS_AT_ONCE = 64
_SAFE_SENTENCE = 6  # the first version that asks for trust_remote_code before it imports from a local folder
_LONGEST = 1 << 20  # tokens; tokenizers that know no limit give a number of thirty digits


def load_hf(
    name: str, model_name: str, library: Library, takes: Kind, weights: str | Path | None, device: str
) -> PictureEncoder | TextEncoder:
    """Load a model by ``AutoModel``, with the tokenizer or the image processor that belongs to it."""
    transformers: Any = library.load()
    place = _folder_or_name(model_name)
    with explain_loading(name, library, _way_out("hf", model_name)), _without_bars():
        processor = _load_processor(transformers, place, name, takes)
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        if hasattr(config, "mask_ratio"):
            config.mask_ratio = 0.0  # else a masked autoencoder embeds a random part of each picture
        if weights is None:
            model, info = transformers.AutoModel.from_pretrained(
                place, config=config, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
            )
            lacking = [key for key in info["missing_keys"] if not key.endswith("position_ids")]
        else:
            model = transformers.AutoModel.from_config(config, trust_remote_code=False).float()
            prefix = f"{model.base_model_prefix}."
            lacking = load_weights(model, weights, name, prefix=prefix, may_lack=_is_pooler)
    others = [key for key in lacking if not _is_pooler(key)]
    if others:
        raise SgoifError(
            f"the weights of {name!r} lack {len(others)} of its tensors ({', '.join(sorted(others)[:3])}, …), which "
            "would be random numbers; the folder or file belongs to another model."
        )
    model.eval()
    made = (name, library.find_version(), hash_weights(model))
    model.to(device)
    if takes == "texts":
        return _text_encoder(name, model, processor, config, made, device)
    side, prepare = _preparing(processor, name)
    forward = _picture_forward(model, has_pooler=not lacking)
    return PictureEncoder(name, side, make_fingerprint(*made, processor.to_dict()), prepare, forward, device)


def load_sentence(name: str, model_name: str, library: Library, weights: str | Path | None, device: str) -> TextEncoder:
    """Load a sentence-transformers model; pooling and normalisation are those of its own modules."""
    if weights is not None:
        raise SgoifError(f"{name!r} takes no --weights: name the folder that holds model and weights, sentence:FOLDER.")
    version = library.find_version() or "0"
    if int(version.partition(".")[0]) < _SAFE_SENTENCE and library.find_version() is not None:
        raise SgoifError(
            f"sentence-transformers {version} runs code that lies in a model's folder; install one that does not: "
            f"pip install 'sentence-transformers>={_SAFE_SENTENCE}'."
        )
    library_module: Any = library.load()
    with explain_loading(name, library, _way_out("sentence", model_name)), _without_bars():
        model = library_module.SentenceTransformer(
            _folder_or_name(model_name), device=device, trust_remote_code=False
        ).eval()
    limit = model.max_seq_length
    prompt = (model.prompts or {}).get(model.default_prompt_name or "", "")

    def forward(texts: list[str]) -> Any:
        return model.encode(texts, batch_size=_TEXTS_AT_ONCE, show_progress_bar=False, convert_to_numpy=True)

    return TextEncoder(
        name,
        make_fingerprint(name, library.find_version(), hash_weights(model), str(model), prompt),
        forward,
        lambda texts: count_truncated(model.tokenizer, texts, limit),
    )


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep transformers from drawing progress bars of its own as it loads weights."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _folder_or_name(text: str) -> str:
    """A folder of this machine, or a name on the hub.

    Raises:
        SgoifError: It looks like a path and is no folder.
    """
    place = os.path.expanduser(text)
    if os.path.isdir(place):
        return place
    if text.startswith(("/", "./", "../", "~")):
        raise SgoifError(f"there is no folder '{place}'; name one that save_pretrained wrote, or a model on the hub.")
    return text


def _way_out(prefix: str, model_name: str) -> str:
    return (
        f"download it where there is a network (hf download {model_name} --local-dir FOLDER) and name the folder: "
        f"{prefix}:FOLDER" + ("; weights alone go into --weights FILE" if prefix == "hf" else "")
    )


def _load_processor(transformers: Any, place: str, name: str, takes: Kind) -> Any:
    if takes == "texts":
        return transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    # PIL: transformers would else take torchvision where it is installed, which scales slightly differently
    is_new = importlib.util.find_spec("transformers.image_processing_backends") is not None
    by_pil: dict[str, Any] = {"backend": "pil"} if is_new else {"use_fast": False}
    found = transformers.AutoImageProcessor.from_pretrained(place, trust_remote_code=False, **by_pil)
    if found is None:
        raise SgoifError(f"{name!r} has no image processor; is it a model of texts?")
    return found


def _is_pooler(key: str) -> bool:
    return "pooler" in key.split(".")


def _preparing(processor: Any, name: str) -> tuple[int, Callable[[Sequence[Image]], Tensor]]:
    """The side of the pictures that a processor makes, and how it makes them."""
    from PIL import Image

    def prepare(pictures: Sequence[Image.Image]) -> Tensor:
        values = processor(images=list(pictures), return_tensors="np")["pixel_values"]
        return torch.from_numpy(np.asarray(values, dtype=np.float32))

    shapes = {tuple(prepare([Image.new("RGB", size)]).shape) for size in ((96, 64), (64, 128))}
    shape = shapes.pop()
    if shapes or len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3]:
        raise SgoifError(
            f"the image processor of {name!r} makes {list(shape)} of a picture; expected [1, 3, S, S] of every one. "
            "Use the model through module:factory."
        )
    return shape[2], prepare


def _picture_forward(model: Any, *, has_pooler: bool) -> Callable[[Tensor], Tensor]:
    """Embed by the image tower of a model of two; else by the pooler, the class token, or the mean over positions.

    A pooler whose weights are not in the checkpoint holds random numbers and is passed over.
    """
    has_class_token = any(key.endswith(("cls_token", "class_embedding")) for key, _ in model.named_parameters())

    def forward(pictures: Tensor) -> Tensor:
        if hasattr(model, "get_image_features"):
            found = model.get_image_features(pixel_values=pictures)
            return found if isinstance(found, Tensor) else found.pooler_output
        out = model(pixel_values=pictures)
        pooled, hidden = getattr(out, "pooler_output", None), out.last_hidden_state
        if pooled is not None and has_pooler:
            return pooled  # type: ignore[no-any-return]
        return hidden[:, 0] if hidden.dim() == 3 and has_class_token else hidden  # type: ignore[no-any-return]

    return forward


def _text_encoder(
    name: str, model: Any, tokenizer: Any, config: Any, made: Sequence[object], device: str
) -> TextEncoder:
    """Embed by the mean over the tokens that the attention mask keeps; by the text tower of a model of two."""
    limit = int(min(tokenizer.model_max_length, _LONGEST))
    if limit == _LONGEST:  # the tokenizer knows none; some models keep two positions for themselves
        limit = int(getattr(config, "max_position_embeddings", None) or 514) - 2
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise SgoifError(f"the tokenizer of {name!r} has no token to pad with; use it through module:factory.")

    def embed_part(texts: list[str]) -> Tensor:
        given = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt").to(device)
        if hasattr(model, "get_text_features"):
            found = model.get_text_features(**given)
            return found if isinstance(found, Tensor) else found.pooler_output
        if model.config.is_encoder_decoder:
            hidden = model.get_encoder()(**given).last_hidden_state
        else:
            hidden = model(**given).last_hidden_state
        mask = given["attention_mask"][:, :, None].to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1).clamp_min(1)  # type: ignore[no-any-return]

    def forward(texts: list[str]) -> Tensor:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # texts of a length together: less padding
        parts = [order[start : start + _TEXTS_AT_ONCE] for start in range(0, len(order), _TEXTS_AT_ONCE)]
        found = torch.cat([embed_part([texts[i] for i in part]).float().cpu() for part in parts])
        return found[torch.argsort(torch.tensor(order))]

    return TextEncoder(
        name,
        make_fingerprint(*made, limit),
        forward,
        lambda texts: count_truncated(tokenizer, texts, limit),
    )
