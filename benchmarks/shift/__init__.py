"""Streams that change, and streams that do not: how soon our sentinel and others tell the one, how rarely the other.

``python -m benchmarks.shift`` measures. Constants were chosen on 2,000 train images that no network was trained on,
never on the test images of which the streams are made.
"""
