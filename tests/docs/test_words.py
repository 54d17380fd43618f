"""Words of our own that a reader would not search for do not come back: docs, README, and the strings of src."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = {
    r"usual (images|inputs|batches|ones)": "in-distribution",
    r"unlike (the usual|inputs)": "out-of-distribution",
    r"yardstick": "held-out examples used for calibration",
    r"whoever": "your reviewers, the caller",
    r"(is|are|was|were) told\b": "shows, reports, distinguishes",
    r"who taught": "training examples behind a prediction",
    r"dearest": "the most expensive",
    r"held against": "compared with",
    r"look-alikes? class": "similar class",
    r"next to nothing": "almost nothing",
    r"earns? (its|their) place": "helps",
    r"with nobody looking": "without review",
    r"in our hands": "in our implementation",
    r"people err\b": "annotators make mistakes",
    r"nothing (here )?is ours": "plain PyTorch",
    r"in truth\b": "actually",
    r"trained anew": "retrained",
    r"rules? (was|were) mended": "corrected",
}
WORDS = re.compile(r"\b(" + "|".join(INSTEAD) + ")", re.I)


def prose(path):
    """The text of a page outside fenced code and generated tables."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M)
    return [re.sub(r"<!-- table.*?<!-- end -->", "", text, flags=re.S)]


def strings(path):
    """The string literals of a module, docstrings and parts of f-strings too."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def find_words(texts):
    flat = (re.sub(r"\s+", " ", text) for text in texts)
    return [match[0].lower() for text in flat for match in WORDS.finditer(text)]


def instead(found):
    return {word: plain for word in found for old, plain in INSTEAD.items() if re.search(old, word, re.I)}


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = sorted({path.parent for path in (ROOT / "src" / "sgoif").rglob("*.py")})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_field(page):
    assert instead(find_words(prose(page))) == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_strings_of_the_source_use_the_words_of_the_field(folder):
    found = {path.name: instead(find_words(strings(path))) for path in sorted(folder.glob("*.py"))}
    assert {name: words for name, words in found.items() if words} == {}


def test_a_word_of_our_own_is_found_across_lines():
    assert find_words(["Held out as the\nyardstick, unlike the\n  usual ones."]) == ["yardstick", "unlike the usual"]
