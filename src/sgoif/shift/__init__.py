"""Streams of inputs that move away from the usual ones: the sentinel, its readings, its file."""

from sgoif.shift.sentinel import ShiftReading, ShiftSentinel

__all__ = ["ShiftReading", "ShiftSentinel"]
