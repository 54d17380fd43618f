"""Whether weak features are told from wrong labels: clean sets that heads doubt, and noisy ones beside them.

Where features say little of the classes, heads contradict labels that are right. The estimator has a rule for that
(:mod:`sgoif.judging.weakness`); each cell is measured with the rule and without it.
"""
