"""How far findings can be trusted where people are: few errors, small sets, many classes, weak features.

Every cell is one dataset, one kind of noise and one rate. Development cells may be tuned on; reported cells may not,
and are named apart in :mod:`benchmarks.trust.cells` before anything is run on them.
"""
