"""Scoring examples by a snapshot, after the training and elsewhere: on this machine, or on many through Ray Data."""
