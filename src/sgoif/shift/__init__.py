"""Distribution shift in a stream of inputs: the sentinel, its readings, its file."""

from sgoif.shift.sentinel import ShiftReading, ShiftSentinel

__all__ = ["ShiftReading", "ShiftSentinel"]
