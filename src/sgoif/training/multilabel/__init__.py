"""Multi-label triage: which tags are too many, and which are missing. One row per example and tag worth keeping."""
