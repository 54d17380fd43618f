"""Texts of any kind are shown within their room, and never steer the terminal."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sgoif.cli.output import clean, percent, percents, plain, shorten


@given(st.text(), st.integers(3, 60))
def test_a_shortened_text_fits_and_keeps_both_ends(text, width):
    shown = shorten(text, width)
    assert shown.isprintable() and cell_len(shown) <= width
    if cell_len(clean(text)) <= width:
        assert shown == clean(text)
    else:
        left, _, right = shown.partition("…")
        assert clean(text).startswith(left) and clean(text).endswith(right)


@given(st.text())
def test_a_cleaned_text_is_printable_and_stays_when_it_was(text):
    assert clean(text).isprintable()
    assert clean(text) == text or not text.isprintable()


@given(st.floats(0, 1), st.floats(0, 1))
def test_shares_are_written_within_rounding(low, high):
    low, high = sorted([low, high])
    assert percents(low, high).endswith("%")
    shown = percent(low)
    assert shown.startswith("<") or abs(float(shown[:-1]) - 100 * low) <= 0.5


def test_what_json_lacks_becomes_null_or_text():
    import numpy as np

    assert plain({"a": float("nan"), "b": np.array([1.5, np.inf]), "c": (np.int64(3), True), 4: {1}}) == {
        "a": None,
        "b": [1.5, None],
        "c": [3, True],
        "4": [1],
    }
