"""Words of our own that a reader would not search for do not come back: docs, README, and the strings of src."""

import ast
import re
from pathlib import Path

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
    return [re.sub(r"^```.*?^```$|<!-- table.*?<!-- end -->", "", path.read_text(), flags=re.S | re.M)]


def strings(path):
    """The string literals of a module, docstrings and parts of f-strings too."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def find_words(texts):
    flat = (re.sub(r"\s+", " ", text) for text in texts)
    return [match[0].lower() for text in flat for match in WORDS.finditer(text)]


def name_instead(paths, read):
    """What to write instead of the words that are found, by file."""
    found = ((path, word) for path in paths for word in find_words(read(path)))
    return {
        (str(path), word): [new for old, new in INSTEAD.items() if re.search(old, word, re.I)] for path, word in found
    }


def test_pages_use_the_words_of_the_field():
    assert name_instead([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], prose) == {}


def test_strings_of_the_source_use_the_words_of_the_field():
    assert name_instead((ROOT / "src" / "sgoif").rglob("*.py"), strings) == {}


def test_a_word_of_our_own_is_found_across_lines():
    assert find_words(["Held out as the\nyardstick, unlike the\n  usual ones."]) == ["yardstick", "unlike the usual"]
