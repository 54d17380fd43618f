"""The table of data issues: what it finds of issues that were planted, beside cleanlab's Datalab, and in real data.

Development cells may be tuned on: Fashion-MNIST. Reported cells may not: CIFAR-10 and CLINC150. They were named apart
(:data:`benchmarks.checks.sets.DEVELOPMENT`, :data:`benchmarks.checks.sets.REPORTED`) before anything was run on them.
"""
