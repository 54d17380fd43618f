"""What the plan takes as given, each a number that an option changes: a machine, a network, prices, a run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields

from sgoif.training.work import Speed

__all__ = ["Assumptions", "add_options", "from_options"]


def _given(default: float, meaning: str) -> float:
    found: float = field(default=default, metadata={"meaning": meaning})
    return found


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Nobody measured these here."""

    pictures: float = _given(2e9, "pictures, each seen once")
    model_tflops: float = _given(400, "TFLOP/s that the training sustains, bf16 (an H100 has 989 at most)")
    monitor_tflops: float = _given(30, "TFLOP/s of the monitor's float32 products (67 at most)")
    memory_tb_s: float = _given(2.0, "TB/s of device memory, sustained (3.35 at most)")
    launches_per_s: float = _given(3e5, "tiny operators that the host starts in a second, without Python around them")
    network_gbit_s: float = _given(10, "Gbit/s of a rank between hosts, through the host's memory")
    message_us: float = _given(30, "microseconds of a message from one host's gloo to another's")
    gpu_hour_usd: float = _given(2.5, "price of a GPU hour")
    core_hour_usd: float = _given(0.05, "price of a core hour")
    stored_gb_usd: float = _given(0.023, "price of a stored GB, per month")
    puts_1000_usd: float = _given(0.005, "price of 1,000 writes or listings")
    gets_1000_usd: float = _given(0.0004, "price of 1,000 reads")
    request_ms: float = _given(30, "milliseconds of a request; 16 footers are read at once, 1,000 names are listed")
    checkpoint_minutes: float = _given(60, "minutes between two checkpoints, each of which closes a part on every rank")
    held_per_class: float = _given(20, "hold-out examples per class, 50,000 in all at most, 2 per class at least")

    @property
    def model_speed(self) -> Speed:
        """A sustained rate has everything in it."""
        return Speed(1e12 * self.model_tflops, float("inf"), float("inf"))

    @property
    def monitor_speed(self) -> Speed:
        return Speed(1e12 * self.monitor_tflops, 1e12 * self.memory_tb_s, self.launches_per_s)

    def holdout(self, classes: int) -> int:
        """Examples of a hold-out for so many classes."""
        return int(max(min(self.held_per_class * classes, 50_000), 2 * classes))


def add_options(parser: argparse.ArgumentParser) -> None:
    """An option for every assumption."""
    for item in fields(Assumptions):
        name = f"--{item.name.replace('_', '-')}"
        parser.add_argument(
            name, type=float, default=item.default, help=f"{item.metadata['meaning']} ({item.default:g})"
        )


def from_options(options: argparse.Namespace) -> Assumptions:
    return Assumptions(**{item.name: getattr(options, item.name) for item in fields(Assumptions)})
