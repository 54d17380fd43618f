"""What others do with the same training: one file per idea, one score per example, and what it costs.

``python -m benchmarks.rivals`` runs them all. Every rival gets the data of a :class:`~benchmarks.rivals.case.Case` and
the one bare training of it, and answers with scores (high is suspicious) and the seconds it took beside that training.
"""
