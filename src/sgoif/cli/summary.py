"""The summary of a run as the commands open it."""

from __future__ import annotations

from sgoif import summary
from sgoif.cli.opened import OpenRun
from sgoif.summary import Leak, Summary

__all__ = ["Leak", "Summary", "kind_of_holdout", "summarise"]


def summarise(run: OpenRun) -> Summary:
    """Collect the summary of a run."""
    return summary.summarise(run.files.sql, run.about, run=run.url, class_names=run.class_names)


def kind_of_holdout(run: OpenRun) -> str:
    """Whether the hold-out's labels were verified, and if not, whether they were cleaned and why."""
    return summary.kind_of_holdout(run.about)
