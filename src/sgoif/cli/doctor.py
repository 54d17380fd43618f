"""``sgoif doctor``: is this machine ready, and which known traps are set?"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict
from importlib import metadata
from typing import Any

from sgoif.cli.options import Json
from sgoif.cli.output import emit_json, print_facts, print_lines

_PACKAGES = ("torch", "numpy", "pyarrow", "duckdb", "fsspec", "rich", "typer")
_EXTRAS = {
    "Pillow": "reads pictures (scan)",
    "s3fs": "runs on S3",
    "scikit-learn": "extra trees that judge the labels of tables",
    "ray": "scoring a corpus on many machines",
}
_TO_INSTALL = {
    "pictures": "pip install timm, with the torchvision that belongs to your torch",
    "texts": "pip install sentence-transformers; without one, texts are compared by their words",
}
_LOW_DISK_GB = 5


def doctor(as_json: Json = False) -> None:
    """Look at this machine: what is installed, and which known traps are set."""
    found = examine()
    warned = warnings_about(found)
    if as_json:
        return emit_json("doctor", **found, warnings=warned)
    facts = {
        "Machine": _describe_machine(found),
        "Packages": [(name, version or "missing") for name, version in found["packages"].items()],
        "Extras": [
            (name, f"{version or 'not installed'}: {_EXTRAS[name]}") for name, version in found["extras"].items()
        ],
        "Backbones for scan": describe_libraries(found["backbones"]),
        "Recommended backbones": [
            (kind, name or f"none can be loaded here: {_TO_INSTALL[kind]}")
            for kind, name in found["recommended_backbones"].items()
        ],
    }
    for title, lines in facts.items():
        print_facts(title, lines)
        print_lines([""])
    print_lines([f"Warning: {line}" for line in warned], style="yellow")
    if not warned:
        print_lines(["No known trap is set."], style="green")


def examine() -> dict[str, Any]:
    """Look at the machine: processors, threads, devices, packages and disk."""
    import torch

    from sgoif.backbones import describe_backbones

    libraries = describe_backbones()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    has_mps = bool(getattr(torch.backends, "mps", None)) and torch.backends.mps.is_available()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "usable_cores": _count_usable_cores(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "devices": gpus or (["mps"] if has_mps else ["cpu"]),
        "free_gb": shutil.disk_usage(os.getcwd()).free / 1e9,
        "is_disabled": os.environ.get("SGOIF_DISABLE") == "1",
        "packages": {name: _find_version(name) for name in _PACKAGES},
        "extras": {name: _find_version(name) for name in _EXTRAS},
        "backbones": [asdict(library) for library in libraries],
        "recommended_backbones": {
            kind: next((dict(one.suggested)[kind] for one in libraries if kind in one.recommended), None)
            for kind in ("pictures", "texts")
        },
    }


def describe_libraries(libraries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Say of each library of backbones whether it can be used, or what installs it."""
    lines = []
    for one in libraries:
        state = one["version"] or f"not installed: {one['pip']}"
        if one["problem"] is not None:
            state = f"{one['version']}, but cannot be used: {one['problem']}"
        lines.append((f"{one['prefix']}:NAME", f"{state} ({', '.join(one['takes'])})"))
    return lines


def warnings_about(found: dict[str, Any]) -> list[str]:
    """Name the traps that are set, and how to get out of each."""
    lines = []
    if found["threads"] > found["usable_cores"]:
        lines.append(
            f"torch uses {found['threads']} threads on {found['usable_cores']:g} usable cores; they spin against each "
            f"other, measured six times slower. Set OMP_NUM_THREADS={max(int(found['usable_cores']), 1)}."
        )
    elif found["load"] is not None and found["load"] > found["cores"] and found["threads"] > 1:
        lines.append(
            f"the machine is busy (load {found['load']:.1f} on {found['cores']} cores) and torch uses "
            f"{found['threads']} threads; on busy cores fewer are faster: try OMP_NUM_THREADS=1."
        )
    if found["free_gb"] < _LOW_DISK_GB:
        lines.append(f"only {found['free_gb']:.1f} GB are free here; runs keep about 120 bytes per visit.")
    if found["is_disabled"]:
        lines.append("SGOIF_DISABLE=1 is set: watch() does nothing.")
    missing = [name for name, version in found["packages"].items() if version is None]
    if missing:
        lines.append(f"{', '.join(missing)} cannot be found, but sgoif needs them: pip install sgoif again.")
    return lines


def _describe_machine(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("python", found["python"]),
        ("system", found["system"]),
        ("cores", f"{found['cores']}, {found['usable_cores']:g} usable by this process"),
        ("torch threads", str(found["threads"])),
        ("devices", ", ".join(found["devices"])),
        ("free disk here", f"{found['free_gb']:.0f} GB"),
    ]


def _count_usable_cores() -> float:
    """Cores that this process may run on, and no more than its container may use."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return cores if quota == "max" else min(cores, float(quota) / float(period))
    except (OSError, ValueError):
        return cores


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
