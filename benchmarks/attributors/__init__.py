"""Ours, kronfluence's and dattri's attributions of the same models, held against the same retrainings."""
