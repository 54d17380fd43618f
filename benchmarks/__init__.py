"""The evidence behind the library's claims: data, noise, metrics, models, training recipes, timing and raw results.

Nothing here is shipped with the package. Run a benchmark as a module from the root of the checkout, for instance
``python -m benchmarks.NAME``; it needs the ``bench`` extra and the image data (see :func:`benchmarks.data.data_root`).
"""
