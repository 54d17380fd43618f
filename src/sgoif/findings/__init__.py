"""One question that a user asks per file, one table as its answer."""

from sgoif.findings.classes import class_issues, group_issues
from sgoif.findings.duplicates import duplicates_of_run, find_duplicates
from sgoif.findings.effects import INFLUENCE, add_class_names, influence_on_anchors, with_probabilities
from sgoif.findings.keys import with_neighbours
from sgoif.findings.label import label_issues
from sgoif.findings.poison import poison_table
from sgoif.findings.sequences import most_helpful, sequence_duplicates, sequence_issues
from sgoif.findings.tags import tag_issues
from sgoif.findings.values import value_issues

__all__ = [
    "INFLUENCE",
    "add_class_names",
    "class_issues",
    "duplicates_of_run",
    "find_duplicates",
    "group_issues",
    "influence_on_anchors",
    "label_issues",
    "most_helpful",
    "poison_table",
    "sequence_duplicates",
    "sequence_issues",
    "tag_issues",
    "value_issues",
    "with_neighbours",
    "with_probabilities",
]
