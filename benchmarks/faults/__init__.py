"""What happens when something breaks: real processes, real training, one row per fault.

``python -m benchmarks.faults`` tries them all; docs/faults.md shows the rows. Every part trains the same small network
on Fashion-MNIST (:mod:`benchmarks.faults.subject`), breaks one thing at random moments, and then asks the run itself
what it holds, and the weights whether the training felt anything.
"""
