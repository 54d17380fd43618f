"""A class as a person writes it: by its name, or by its number."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["find_class", "find_number", "some_of"]


def find_class(text: str, names: Sequence[str], num_classes: int) -> int | None:
    """Read a class as a person writes it: its name, its name in other letters' case, or its number.

    >>> find_class(" Dog", ["cat", "dog"], 2), find_class("1", ["cat", "dog"], 2), find_class("2", ["cat", "dog"], 2)
    (1, 1, None)
    """
    wanted = text.strip()
    if wanted in names:
        return list(names).index(wanted)
    alike = [i for i, name in enumerate(names) if name.strip().casefold() == wanted.casefold()]
    return alike[0] if len(alike) == 1 else find_number(wanted, num_classes)


def find_number(text: str, num_classes: int) -> int | None:
    """Read the number of a class; a spreadsheet may have written it as ``3.0``.

    >>> find_number("3", 4), find_number("3.0", 4), find_number("4", 4), find_number("cat", 4)
    (3, 3, None, None)
    """
    digits = text.strip().removesuffix(".0")
    number = int(digits) if digits.isascii() and digits.isdigit() else -1
    return number if 0 <= number < num_classes else None


def some_of(names: Sequence[str], num_classes: int, most: int = 12) -> str:
    """List classes for a message."""
    if not names:
        return f"classes 0 to {num_classes - 1}"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
