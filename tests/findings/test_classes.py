"""Which class the wrong labels of a class should most often be."""

import numpy as np

from sgoif.findings.classes import class_issues
from tests.cli.runs import table


def test_a_class_is_confused_with_the_one_that_most_of_its_errors_should_be():
    """Of 30 labels as cat, three should surely be bird and two dog, and many are doubted a little for fox."""
    p = np.concatenate([np.full(3, 0.9), np.full(2, 0.9), np.full(25, 0.01), np.full(30, 0.001)])
    suggested = np.concatenate([np.full(3, 2), np.full(2, 1), np.full(25, 3), np.full(30, 0)])
    found = class_issues(table(p, np.repeat([0, 1], 30), suggested), class_names=["cat", "dog", "bird", "fox"])
    confused = dict(zip(found["name"], found["confused_with"], strict=True))
    assert confused["cat"] == "bird" and confused["dog"] == "cat" and confused["fox"] == ""
