"""A queue with a bound in bytes between the training thread and the one that writes.

The training thread only hands over. Where the queue is full it waits for room, which is counted; where there is none
after a while, as when a network filesystem hangs, the block is given up rather than the training.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

__all__ = ["BoundedQueue", "Item"]


@dataclass(frozen=True, slots=True)
class Item:
    """Something to do for the writing thread."""

    kind: str
    value: Any
    num_bytes: int = 0
    num_rows: int = 0


class BoundedQueue:
    """First in, first out, by bytes.

    Args:
        max_bytes: bytes that may wait; one item may be larger, when it is alone.
        patience_s: longest wait for room. When it was in vain, later items do not wait again until there is room.
    """

    def __init__(self, max_bytes: int, patience_s: float) -> None:
        self.max_bytes, self.patience_s = max_bytes, patience_s
        self.waited_s = 0.0
        self.peak_bytes = 0
        self._items: deque[Item] = deque()
        self._bytes = 0  # waiting, and taken but not done
        self._is_stuck = False
        self._changed = threading.Condition()

    def put(self, item: Item) -> bool:
        """Hand over; False where there was no room in time."""
        with self._changed:
            if not self._has_room(item):
                begun = time.monotonic()
                found = self._changed.wait_for(lambda: self._has_room(item), 0 if self._is_stuck else self.patience_s)
                self.waited_s += time.monotonic() - begun
                self._is_stuck = not found
                if not found:
                    return False
            self._is_stuck = False
            self._items.append(item)
            self._bytes += item.num_bytes
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            self._changed.notify_all()
            return True

    @property
    def has_items(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._items)

    def take(self, timeout_s: float | None = None) -> Item | None:
        """Wait for the next item; None where none came in time."""
        with self._changed:
            found = self._changed.wait_for(lambda: bool(self._items), timeout_s)
            return self._items.popleft() if found else None

    def done(self, item: Item) -> None:
        """Give back the room of an item that was taken."""
        with self._changed:
            self._bytes -= item.num_bytes
            self._changed.notify_all()

    def _has_room(self, item: Item) -> bool:
        return not item.num_bytes or not self._bytes or self._bytes + item.num_bytes <= self.max_bytes
