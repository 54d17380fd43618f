"""How numbers, shares and a user's own words are written, in summaries, tables and messages."""

from __future__ import annotations

import math

__all__ = ["clean", "count", "interval", "percent", "percents"]


def clean(value: object) -> str:
    r"""Write a user's value so that it cannot steer the terminal: control characters and lone surrogates as escapes.

    >>> clean("a\x1b[31m\nb")
    'a\\x1b[31m\\nb'
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def percent(share: float | None, digits: int | None = None) -> str:
    """Write a share; tenths where it is small enough for them to matter.

    >>> percent(0.38), percent(0.0312), percent(None), percent(0.00004)
    ('38%', '3.1%', '?', '<0.1%')
    """
    if share is None or not math.isfinite(share):
        return "?"
    if digits is None:
        digits = 0 if share >= 0.0995 or share == 0 else 1
    if digits == 1 and 0 < share < 0.0005:
        return "<0.1%"
    return f"{100 * share:.{digits}f}%"


def percents(low: float | None, high: float | None) -> str:
    """Write the two ends of an interval.

    >>> percents(0.031, 0.052)
    '3.1-5.2%'
    """
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return "?"
    digits = 0 if low >= 0.0995 or high >= 0.25 else 1
    return f"{100 * low:.{digits}f}-{100 * high:.{digits}f}%"


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """Write a probability with its interval, as tables show it.

    >>> interval(0.981, 0.9, 1.0), interval(0.5, None, None), interval(None, None, None)
    ('0.98 (0.90-1.00)', '0.50', '?')
    """
    if value is None or not math.isfinite(value):
        return "?"
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return f"{value:.2f}"
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def count(number: float, noun: str = "") -> str:
    """Write a number with thousands apart, and what it counts.

    >>> count(1200, "example"), count(1, "class"), count(2, "class"), count(3)
    ('1,200 examples', '1 class', '2 classes', '3')
    """
    shown = f"{number:,.0f}"
    if not noun:
        return shown
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}{'es' if noun.endswith('s') else 's'}"
