"""States of tensors and plain values: written, read as torch.load reads by default, and the same again."""

import io
import pickle

import numpy as np
import pytest
import torch

from sgoif.distributed import SingleProcess
from sgoif.errors import SgoifError
from sgoif.training.checkpoint import from_plain, to_plain, unpack
from tests.training.loops import data, fresh, watch


def through_a_file(state):
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::2],
        np.array([[1.5, np.nan]], np.float32),
        np.array(["a", "späť", ""]),
        np.array([True, False]),
        np.array([2**64 - 1], np.uint64),
        np.zeros((0, 4)),
        np.broadcast_to(np.float64(3), (3,)),
        np.array(7, np.int32),
    ],
)
def test_arrays_of_any_kind_come_back(array):
    (found,) = from_plain(through_a_file(to_plain([array])))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def test_what_is_not_an_array_stays():
    state = {"step": 3, "none": None, "names": ["a"], "tensor": torch.arange(3), "number": np.float64(0.5)}
    found = from_plain(through_a_file(to_plain(state)))
    assert type(found["number"]) is float
    assert torch.equal(found.pop("tensor"), state.pop("tensor"))
    assert found == state


def test_ids_of_a_data_frame_become_strings():
    assert from_plain(to_plain(np.array(["x", "yz"], object))).tolist() == ["x", "yz"]


class _Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_state_that_would_run_code_is_refused(tmp_path, monkeypatch):
    """Whatever the environment makes torch.load's default."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    buffer = io.BytesIO()
    torch.save({"engine": _Malicious(tmp_path / "ran")}, buffer)
    block = (torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8),)
    with pytest.raises(pickle.UnpicklingError):
        unpack({"shared": block, "ranks": {}}, SingleProcess(), torch.device("cpu"))
    assert not (tmp_path / "ran").exists()


def test_what_is_no_state_of_a_monitor_is_refused():
    monitor = watch(fresh(), data()[1])
    with pytest.raises(SgoifError, match="no state of a monitor"):
        monitor.load_state_dict({"engine": {}, "recorder": {}})
