"""Adaptors: one question that a user asks per file, one table as its answer."""

from sgoif.adaptors.classes import class_issues, group_issues
from sgoif.adaptors.duplicates import find_duplicates
from sgoif.adaptors.label import label_issues

__all__ = ["class_issues", "find_duplicates", "group_issues", "label_issues"]
