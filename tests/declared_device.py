"""A device that is declared and not there: tensors say that they are on it, and their numbers are on the CPU.

Whole trainings run on it, with their real numbers, and every operator passes by. Tensors of two devices in one operator
are an error, as on an accelerator, and what an accelerator would be waited for is noted, with the line that did it.

The device is called ``lazy``, since torch runs its backward passes in the thread that asks for them: a tensor that says
``cuda`` cannot be differentiated where torch was built without CUDA.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import sgoif

DEVICE = torch.device("lazy", 0)
_SOURCE = str(Path(sgoif.__file__).parent)
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}  # torch's own list: a number, or a shape
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")  # may count the rows of a mask, and often do not
# On CUDA these read an error code on the host, inside their kernels.
_FACTORISATIONS = (
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "cholesky_inverse",
    "linalg_eig",
    "linalg_lstsq",
    "linalg_pinv",
)


class DeclaredTensor(Tensor):
    """A tensor on the declared device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held):
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    def tolist(self):
        return self.cpu().tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        raise RuntimeError(f"{operator} outside of the device's context")


class DeclaredDevice(TorchDispatchMode):
    """The context in which the device exists; notes what an accelerator would have been waited for.

    Args:
        has_float64: whether it computes in double precision; MPS does not.
    """

    def __init__(self, has_float64=True):
        super().__init__()
        self._waits, self._has_float64 = Counter(), has_float64

    def __enter__(self):
        self._lifted, _ = torch._C._only_lift_cpu_tensors(), torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()  # torch.tensor(..., device=) is a copy to the device

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        return super().__exit__(*error)

    def take_waits(self):
        """What was noted since the last call."""
        found, self._waits = self._waits, Counter()
        return found

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = operator._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, DeclaredTensor)]
        if ours:
            self._note(operator, name, args, ours)
            if name not in (*_INDEXING, "copy_"):
                self._refuse_mixed(operator, tensors)
        asked = kwargs.get("device")
        is_here = bool(ours) if asked is None else torch.device(asked).type == DEVICE.type
        if asked is not None:
            if name == "_to_copy" and is_here != bool(ours):
                self._copy(is_here, kwargs.get("non_blocking", False))
            kwargs["device"] = torch.device("cpu")
        found = operator(*tree_map(_held, args), **tree_map(_held, kwargs))
        same = {id(tensor.held): tensor for tensor in ours}  # what is written in place is given back as itself
        return tree_map(lambda out: self._declare(out, same) if is_here and isinstance(out, Tensor) else out, found)

    def _note(self, operator, name, args, ours):
        if _READS & set(operator.tags) and name not in _INDEXING:
            self._add(f"read by {name}")
        if name in _FACTORISATIONS:
            self._add(f"error code of {name}")
        if name in _INDEXING:
            if not isinstance(args[0], DeclaredTensor):
                raise RuntimeError(f"{operator} got indices on {DEVICE} of a tensor on cpu, at {_line()}")
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    self._add(f"counted by {name}")  # how many rows a mask selects
                elif index is not None and not isinstance(index, DeclaredTensor) and index.dim():
                    self._add("copied to the device")
        if name == "copy_" and isinstance(args[0], DeclaredTensor) != isinstance(args[1], DeclaredTensor):
            self._copy(isinstance(args[0], DeclaredTensor), len(args) > 2 and args[2])

    def _copy(self, is_to_device, non_blocking):
        """What is read on the host is waited for, then or later; what is sent need not be."""
        if not (is_to_device and non_blocking):
            self._add("copied to the device" if is_to_device else "copied to the host")

    def _declare(self, out, same):
        if out.dtype == torch.float64 and not self._has_float64:
            raise TypeError(f"{DEVICE} has no float64, at {_line()}")
        return same[id(out)] if id(out) in same else DeclaredTensor(out)

    def _refuse_mixed(self, operator, tensors):
        """A number on the host may meet the device; it travels with the launch."""
        strays = [t for t in tensors if not isinstance(t, DeclaredTensor) and t.dim()]
        if strays:
            raise RuntimeError(f"{operator} got tensors of two devices, {DEVICE} and cpu, at {_line()}")

    def _add(self, what):
        self._waits[f"{_line()}: {what}"] += 1


def _held(value):
    return value.held if isinstance(value, DeclaredTensor) else value


def _line():
    """The line of the package that is running; of whoever runs where it is none of the package."""
    frame = outer = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.startswith(_SOURCE):
        frame = frame.f_back
    frame = frame or outer
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
