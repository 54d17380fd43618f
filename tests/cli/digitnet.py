"""A small network for digits as a user has one: a module with a factory, and its weights beside it."""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

__all__ = ["as_images", "load_pixels", "save_digit_model", "save_pictures"]

MODULE = """
import numpy as np, torch
def make():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10))
    model.load_state_dict(torch.load("weights.pt"))
    model.transform = lambda picture: torch.tensor(np.asarray(picture))[None, ..., 0].float() / 255
    return model
"""


def load_pixels():
    """The digits of scikit-learn as pictures ``[N, 8, 8]`` of bytes, and what they show."""
    return (load_digits().images * 255 / 16).astype(np.uint8), load_digits().target


def as_images(pixels):
    """What the network takes of pictures."""
    return torch.tensor(pixels)[:, None].float() / 255


def save_pictures(pixels, folder, names=None):
    """Write pictures into a folder, by their number where they have no names."""
    for i, picture in enumerate(pixels):
        path = folder / (names[i] if names is not None else f"{i:03d}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)


def save_digit_model(folder, name, images, labels):
    """Train on pictures ``[N, 1, 8, 8]``, write ``name.py`` and its weights into a folder, and return the model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / f"{name}.py").write_text(MODULE)
    return model
