"""``sgoif doctor`` and ``sgoif bench``: the machine as it is, and a measurement."""

import pytest

from sgoif.backbones import names
from sgoif.cli.doctor import examine, warnings_about
from tests.cli.runs import answer, read_output, read_refusal

MODEL = """
from torch import nn

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))

def empty():
    return nn.ReLU()
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    name = f"model_{abs(hash(str(tmp_path)))}"  # a module is imported once per process
    (tmp_path / f"{name}.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:small"


def test_the_machine_is_described():
    document = answer("doctor")
    assert document["packages"]["torch"]
    assert 0 < document["usable_cores"] <= document["cores"]
    shown = read_output("doctor")
    assert "torch threads" in shown and "Extras" in shown


def use_libraries(monkeypatch, installed, broken=None):
    monkeypatch.setattr(names.Library, "find_version", lambda self: "1.2" if self.prefix in installed else None)
    monkeypatch.setattr(names, "find_broken_torchvision", lambda: broken)


def read_shown():
    return " ".join(read_output("doctor").split())


def test_one_backbone_is_recommended_for_pictures_and_one_for_texts(monkeypatch):
    use_libraries(monkeypatch, {"timm", "torchvision", "sentence"})
    assert answer("doctor")["recommended_backbones"] == {
        "pictures": "timm:tf_efficientnet_lite0",
        "texts": "sentence:sentence-transformers/all-MiniLM-L6-v2",
    }
    shown = read_shown()
    assert "timm:NAME 1.2 (pictures)" in shown and "pictures timm:tf_efficientnet_lite0" in shown
    assert "hf:NAME not installed: pip install transformers (pictures, texts)" in shown
    use_libraries(monkeypatch, set())
    assert answer("doctor")["recommended_backbones"] == {"pictures": None, "texts": None}
    shown = read_shown()
    assert "none can be loaded here: pip install timm" in shown and "pip install sentence-transformers" in shown
    use_libraries(monkeypatch, {"timm", "torchvision"}, "RuntimeError: operator torchvision::nms does not exist")
    shown = read_shown()
    assert "1.2, but cannot be used: torchvision cannot be imported: RuntimeError: operator" in shown
    assert "pictures none can be loaded here" in shown


def test_traps_are_named_with_the_way_out():
    fine = {**examine(), "threads": 1, "usable_cores": 1.0, "load": 0.0, "free_gb": 100.0, "is_disabled": False}
    assert warnings_about(fine) == []
    (line,) = warnings_about({**fine, "threads": 8, "usable_cores": 1.5})
    assert "8 threads on 1.5 usable cores" in line and "OMP_NUM_THREADS=1" in line
    (line,) = warnings_about({**fine, "threads": 2, "usable_cores": 2.0, "cores": 2, "load": 3.5})
    assert "load 3.5" in line
    assert "0.5 GB" in warnings_about({**fine, "free_gb": 0.5})[0]
    assert "SGOIF_DISABLE" in warnings_about({**fine, "is_disabled": True})[0]
    assert "duckdb" in warnings_about({**fine, "packages": {"duckdb": None}})[0]


def test_the_cost_of_a_model_is_measured(model):
    arguments = ["bench", "--model", model, "--input", "3,8,8", "--batch", 16, "--classes", 10, "--blocks", 2]
    found = answer(*arguments)
    assert 0 < found["low"] <= found["ratio"] <= found["high"] and found["bare_ms"] > 0
    assert "measured on CPU" in read_output(*arguments)


def test_what_does_not_fit_the_model_is_told(model):
    for name, options, said in (
        (model, ["--input", "3,8,8", "--classes", 7], "tells 10 classes apart; pass --classes 10"),
        (model, ["--input", "3,9,9"], "does not take inputs of shape"),
        (model.replace("small", "empty"), [], "no parameters"),
        (model, ["--blocks", 3], "--blocks must be even"),
        (model, ["--autocast", "int8"], "--autocast takes"),
    ):
        assert said in read_refusal("bench", "--model", name, *options)
