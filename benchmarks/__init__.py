"""The evidence behind the library's claims: data, noise, metrics, models, training recipes, timing and raw results.

Nothing here is shipped with the package. ``python -m benchmarks`` runs everything, from the root of the checkout; it
needs the ``bench`` extra and the image data (see :func:`benchmarks.data.data_root`).
"""
