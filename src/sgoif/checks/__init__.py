"""The table of data issues: what else is wrong with a labelled dataset, besides single labels.

Every check answers with a count, an interval or a p-value, the worst examples and what to do; one that lacks what it
needs says why. Only numpy and scikit-learn are used, and nothing is trained but clusters.
"""

from __future__ import annotations

from sgoif.checks.data import CheckedData, DataIssue
from sgoif.checks.find import KINDS, find_data_issues
from sgoif.checks.table import issue_table

__all__ = ["KINDS", "CheckedData", "DataIssue", "find_data_issues", "issue_table"]
