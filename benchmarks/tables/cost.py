"""What watching costs: whole steps with the monitor over bare ones."""

from __future__ import annotations

from benchmarks.tables.rows import Run, latest, table

__all__ = ["MEMORY_BAR", "TIME_BAR", "cost_rows", "overhead"]

TIME_BAR, MEMORY_BAR = 1.10, 1.15
_NAMES = {"resnet9": "ResNet-9", "resnet18": "ResNet-18", "vit": "small ViT"}


def cost_rows() -> list[Run]:
    """The last measurement of each model and number of classes."""
    return latest("overhead.jsonl", key=lambda run: (run["model"], run["classes"], run.get("settings", {}).get("part")))


def memory_ratio(run: Run) -> float | None:
    peak = run.get("peak_mb")
    return peak["watched"] / peak["bare"] if peak else None


def overhead() -> str:
    """Ratio of medians with its interval, and of peak memory, each held against its bar."""
    rows = []
    for run in cost_rows():
        time, memory = run["timing"]["watched"], memory_ratio(run)
        ends = f"[{time['ratio_low']:.3f}, {time['ratio_high']:.3f}]"
        said = f"{time['ratio']:.3f} {ends} {_verdict(time['ratio'], TIME_BAR)}"
        held = f"{memory:.3f} {_verdict(memory, MEMORY_BAR)}" if memory else ""
        rows.append([f"{_NAMES[run['model']]}, {run['classes']:,}", said, held])
    return table(("model, classes", "time", "peak memory"), rows)


def _verdict(value: float, bar: float) -> str:
    return "met" if value <= bar else "missed"
