"""Adaptors: one question that a user asks per file, one table as its answer."""

from sgoif.findings.anchors import INFLUENCE, influence_on_anchors
from sgoif.findings.classes import class_issues, group_issues
from sgoif.findings.duplicates import bits_of_copies, duplicates_of_run, find_duplicates
from sgoif.findings.effects import effect_percent, effect_table, with_names, with_probabilities
from sgoif.findings.label import label_issues
from sgoif.findings.neighbours import harmed_holdout, has_likeness, nearest_examples
from sgoif.findings.poison import poison_table
from sgoif.findings.tags import tag_issues

__all__ = [
    "INFLUENCE",
    "bits_of_copies",
    "class_issues",
    "duplicates_of_run",
    "effect_percent",
    "effect_table",
    "find_duplicates",
    "group_issues",
    "harmed_holdout",
    "has_likeness",
    "influence_on_anchors",
    "label_issues",
    "nearest_examples",
    "poison_table",
    "tag_issues",
    "with_names",
    "with_probabilities",
]
