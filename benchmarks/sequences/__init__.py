"""Language models: wrong completions, agreement with retraining, choosing what helps, and what watching costs."""
