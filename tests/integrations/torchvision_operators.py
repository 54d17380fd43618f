"""Two operators that torchvision's builds for GPUs miss beside a torch for CPUs, where importing it fails without them.

Import this before a library that imports torchvision if it is installed (Lightning, timm).
"""

import importlib.util

import torch

_KEPT = []  # operators live as long as their library

if importlib.util.find_spec("torchvision") is not None:
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        _KEPT.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _KEPT[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
