"""The tables of ``docs/benchmarks/``, made from the raw results: ``python -m benchmarks tables`` rewrites the pages."""
