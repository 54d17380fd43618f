"""Finds bad training data while the model trains.

Every training example gets an influence score online, with a confidence beside it. See the README for a start.
"""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
