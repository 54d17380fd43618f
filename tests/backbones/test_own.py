"""Backbones of the user's own: what they are given and may return, and whose mistake an error is."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from sgoif.backbones import load_encoder
from sgoif.errors import SgoifError

MODULE = """
import numpy as np
import torch

def plain():
    return lambda pictures: pictures.mean((2, 3))

def sized():
    def embed(pictures):
        assert pictures.dtype == torch.float32 and pictures.shape[1:] == (3, 20, 20)
        assert 0 <= pictures.min() and pictures.max() <= 1 and not torch.is_grad_enabled()
        return pictures
    embed.input_size = 20
    return embed

def words():
    return lambda texts: np.array([[len(text), text.count(" ")] for text in texts], dtype=np.float64)

def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)

def scalar():
    return lambda pictures: pictures.mean()

def short():
    return lambda pictures: pictures.mean((2, 3))[:2]

def couple():
    return lambda pictures: (pictures,)

def number():
    return 3

def bad():
    raise ValueError("no weights here")

def whole():
    return lambda texts: [[1]] * len(texts)
"""

COLOURS = [Image.new("RGB", (8, 8), (80 * number, 9, 9)) for number in range(3)]


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"own_{abs(hash(str(tmp_path)))}"  # a module is imported once per process
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_pictures_are_given_as_promised_and_averaged_over_positions(module):
    encoder = load_encoder(f"{module}:plain", takes="pictures")
    assert (encoder.takes, encoder.side) == ("pictures", 224)
    expected = np.array([[80 * number, 9, 9] for number in range(3)]) / 255
    np.testing.assert_allclose(encoder.embed(COLOURS), expected, atol=1e-6)
    np.testing.assert_allclose(load_encoder(f"{module}:sized", takes="pictures").embed(COLOURS), expected, atol=1e-6)


def test_texts_are_given_as_a_list(module):
    rows = load_encoder(f"{module}:words", takes="texts").embed(["a b", "abc d e"])
    assert rows.tolist() == [[3, 1], [7, 2]] and rows.dtype == np.float32


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("linear", r", given float32 pictures \[3, 3, 224, 224\] in \[0, 1\], raised RuntimeError"),
        ("scalar", r".*returned a tensor \[\]; expected \[3, D\]"),
        ("short", r".*returned a tensor \[2, 3\]; expected \[3, D\]"),
        ("couple", ".*returned a tuple; expected"),
        ("number", " made a int; expected a function or module from pictures"),
        ("bad", r", called without arguments, raised ValueError: no weights here \(.*, line 36\)"),
        ("absent", " cannot be found"),
        ("whole", r", given 2 texts, returned a list; expected \[2, D\]"),
    ],
)
def test_mistakes_of_a_backbone_are_reported_as_its_own(module, factory, words):
    takes, given = ("texts", ["a", "b"]) if factory == "whole" else ("pictures", COLOURS)
    with pytest.raises(SgoifError, match=rf"the backbone '{module}:{factory}'{words}"):
        load_encoder(f"{module}:{factory}", takes=takes).embed(given)


def test_weights_of_a_factory_are_its_own(module):
    with pytest.raises(SgoifError, match="takes no --weights: the factory loads its own"):
        load_encoder(f"{module}:words", takes="texts", weights="w.pth")


def test_the_fingerprint_follows_the_file_and_the_weights(module, tmp_path):
    load = lambda factory: load_encoder(f"{module}:{factory}", takes="pictures").fingerprint  # noqa: E731
    first, linear = load("plain"), load("linear")
    assert load("plain") == first != linear == load("linear")
    file = tmp_path / f"{module}.py"
    file.write_text(MODULE + "\n")
    assert load("plain") != first
    file.write_text(MODULE)
    assert load("plain") == first
    other = torch.nn.Linear(4, 2)
    sys.modules[module].linear = lambda: other  # the same file, other weights
    assert load("linear") != linear
