"""Everyone is timed on the same gradients, and who does not run is recorded with the reason."""

import json

import pytest
import torch
from torch import nn

from benchmarks import peers, records
from benchmarks.tables import rows

pytestmark = pytest.mark.filterwarnings("ignore")


class SmallNet(nn.Sequential):
    def __init__(self, norm):
        super().__init__(nn.Conv2d(3, 4, 3, stride=4), norm, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(256, 10))
        self.bare = nn.Parameter(torch.zeros(10))  # of no layer: no library has to know it

    def forward(self, x):
        return super().forward(x) + self.bare


def batch_norm():
    return SmallNet(nn.BatchNorm2d(4))


def layer_norm():
    return SmallNet(nn.LayerNorm([4, 8, 8]))


@pytest.mark.parametrize(
    ("make", "refused", "reason"), [(batch_norm, "opacus", "BatchNorm2d"), (layer_norm, "BackPACK", "LayerNorm")]
)
def test_all_who_run_give_the_same_gradients(make, refused, reason):
    for library in ("opacus", "backpack"):
        pytest.importorskip(library)
    found = peers.compare(make, rank=2, blocks=2, batch=3)
    assert found["refused"].keys() == {refused} and reason in found["refused"][refused]
    running = {"sgoif", *peers.PEERS} - {refused}
    for task in ("materialise", "project"):
        part = found["peers"][task]
        assert part["differences"].keys() == part["wall"].keys() == part["cpu"].keys() == running
        assert part["wall"]["sgoif"]["ratio"] == part["cpu"]["sgoif"]["ratio"] == 1.0


def test_other_gradients_are_not_timed():
    right = {"weight": torch.ones(2, 3)}
    with pytest.raises(AssertionError, match="sgoif differs from vmap by"):
        peers.measure_differences({"vmap": lambda: right, "sgoif": lambda: {"weight": 1.001 * right["weight"]}})
    with pytest.raises(AssertionError, match=r"sgoif has other tensors: \['bias'\]"):
        peers.measure_differences({"vmap": lambda: right, "sgoif": lambda: {**right, "bias": torch.ones(2)}})


def test_the_fastest_peer_decides_in_wall_and_cpu_time(tmp_path, monkeypatch):
    def took(**ratios):
        return {name: {"median_s": 0.5, "ratio": ratio} for name, ratio in {"sgoif": 1.0, **ratios}.items()}

    tasks = {
        "materialise": {"wall": took(vmap=1.5, BackPACK=1.1), "cpu": took(vmap=1.4, BackPACK=0.9)},
        "project": {"wall": took(vmap=1.2, BackPACK=3.0), "cpu": took(vmap=1.0, BackPACK=3.0)},
    }
    row = {"settings": {"part": "peers"}, "model": "vit", "peers": tasks, "refused": {"opacus": "no"}}
    (tmp_path / "contraction.jsonl").write_text(json.dumps(row))
    for module in (records, rows):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    first, second = peers.per_example().splitlines()[2:]
    assert first == "| small ViT, materialise | 500 / 500 | 1.50 / 1.40 | does not run | 1.10 / 0.90 | **missed** |"
    assert second.endswith("| met |")
