"""A run's findings in the shapes of other tools. None of them is imported until it is asked for."""

from __future__ import annotations

from sgoif.export.datalab import datalab_issues
from sgoif.export.fiftyone import fiftyone_samples
from sgoif.export.huggingface import with_findings
from sgoif.export.labelstudio import label_studio_config, label_studio_tasks

__all__ = ["datalab_issues", "fiftyone_samples", "label_studio_config", "label_studio_tasks", "with_findings"]
