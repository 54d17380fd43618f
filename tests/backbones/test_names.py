"""Names of backbones: what is code of the user's own, what is missing, and what to install."""

import subprocess
import sys

import pytest

from sgoif.backbones import describe_backbones, is_user_code, load_encoder, names
from sgoif.errors import SgoifError


def test_all_but_models_of_libraries_is_code_of_the_users():
    names_of_libraries = ["timm:resnet18", "hf:a/b", "sentence:./folder", "torchvision:x", "open_clip:a/b"]
    assert not any(is_user_code(name) for name in names_of_libraries)
    others = ["mymodels:dino", "timms:resnet18", "evil", "Timm:resnet18", " timm:x", ""]
    assert all(is_user_code(name) for name in others)


@pytest.mark.parametrize(
    ("name", "takes", "words"),
    [
        ("resnet18", "pictures", "named timm:NAME, .* or module:factory; got 'resnet18'"),
        ("timm:", "pictures", "got 'timm:'"),
        ("tim:resnet18", "pictures", "No module named 'tim'.* Did you mean timm:resnet18?"),
        ("tim:resnet18.a1_in1k-x", "pictures", "got 'tim:resnet18.a1_in1k-x'. Did you mean timm:"),
        ("timm:resnet18", "texts", "timm: has no models of texts; .* sentence:NAME, hf:NAME, open_clip:NAME"),
        ("sentence:x", "pictures", "sentence: has no models of pictures"),
    ],
)
def test_a_wrong_name_is_answered_with_the_forms_there_are(name, takes, words):
    with pytest.raises(SgoifError, match=words):
        load_encoder(name, takes=takes)


@pytest.mark.parametrize("library", names.LIBRARIES, ids=lambda library: library.prefix)
def test_a_missing_library_is_named_with_the_command_that_installs_it(library, monkeypatch):
    monkeypatch.setattr(names.Library, "find_version", lambda self: None)
    with pytest.raises(SgoifError, match=f"need the package {library.package}: pip install {library.package}"):
        load_encoder(f"{library.prefix}:some", takes=library.takes[0])


def test_a_device_that_is_not_here_is_refused():
    for device in ("cuda:77", "gpu"):
        with pytest.raises(SgoifError, match=f"the device '{device}' cannot be used"):
            load_encoder("timm:resnet18", takes="pictures", device=device)


def states(monkeypatch, installed, broken=None):
    monkeypatch.setattr(names.Library, "find_version", lambda self: "1.0" if self.prefix in installed else None)
    monkeypatch.setattr(names, "find_broken_torchvision", lambda: broken)
    return {state.prefix: state for state in describe_backbones()}


def test_one_library_is_recommended_for_each_kind(monkeypatch):
    found = states(monkeypatch, {"timm", "torchvision", "hf", "sentence"})
    assert {prefix: state.recommended for prefix, state in found.items() if state.recommended} == {
        "timm": ("pictures",),
        "sentence": ("texts",),
    }
    assert ("pictures", "timm:tf_efficientnet_lite0") in found["timm"].suggested
    assert states(monkeypatch, {"hf"})["hf"].recommended == ("pictures", "texts")
    found = states(monkeypatch, {"timm", "hf"})  # timm imports torchvision
    assert "not installed" in found["timm"].problem and found["hf"].recommended == ("pictures", "texts")
    assert not any(state.recommended for state in states(monkeypatch, set()).values())


def test_a_torchvision_of_another_torch_makes_the_others_unusable(monkeypatch):
    found = states(monkeypatch, {"timm", "torchvision", "hf"}, "RuntimeError: operator torchvision::nms does not exist")
    assert not any(state.recommended or state.is_usable for state in found.values())
    assert "nms does not exist" in found["hf"].problem
    error = names.LIBRARIES[2].explain(RuntimeError())
    assert "because torchvision cannot" in str(error) and "pip uninstall torchvision" in str(error)
    assert "uninstall" not in str(names.LIBRARIES[0].explain(RuntimeError()))  # timm cannot do without


def test_names_are_read_without_torch():
    program = "import sys, sgoif.backbones; print(sorted({'torch', 'timm', 'PIL', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
