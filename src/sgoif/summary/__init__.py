"""What a run found, in a few lines: how many errors to expect, how good its list is, and what it rests on."""

from sgoif.summary.annotators import AnnotatorSummary, summarise_annotators
from sgoif.summary.classes import Leak, Summary, summarise
from sgoif.summary.sequences import SequenceSummary, summarise_sequences
from sgoif.summary.shared import (
    competence_line,
    count_examples,
    describe_checked,
    kind_of_holdout,
    read_transition,
    why_no_probabilities,
)
from sgoif.summary.tags import TagSummary, summarise_tags
from sgoif.summary.values import ValueSummary, summarise_values

__all__ = [
    "AnnotatorSummary",
    "AnySummary",
    "Leak",
    "SequenceSummary",
    "Summary",
    "TagSummary",
    "ValueSummary",
    "competence_line",
    "count_examples",
    "describe_checked",
    "kind_of_holdout",
    "read_transition",
    "summarise",
    "summarise_annotators",
    "summarise_sequences",
    "summarise_tags",
    "summarise_values",
    "why_no_probabilities",
]

AnySummary = Summary | TagSummary | ValueSummary | AnnotatorSummary | SequenceSummary
