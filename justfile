# Everything a contributor runs; `just` lists it. `.ci/run` does all of it in fresh environments.

export OMP_NUM_THREADS := "1"

# list the recipes
default:
    @just --list

# install the package with its development tools into the active environment; torch first, of the build you want
setup:
    pip install --editable '.[dev]'

# style, types, import directions, spelling: a minute
lint:
    ruff check .
    ruff format --check .
    mypy
    lint-imports
    codespell

# the tests that need no data, no browser and no Ray; arguments go to pytest
test *ARGS:
    pytest -n 2 --dist loadgroup --ignore tests/browser --ignore tests/scoring/test_on_ray.py {{ARGS}}

# what must be green before a change is proposed
check: lint test docs

# the documentation, strictly, into site/
docs:
    NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

# a small slice of every benchmark, a few minutes; needs SGOIF_DATA
bench *ARGS:
    python -m benchmarks tier S {{ARGS}}

# the tables of docs/benchmarks from the raw results
tables:
    python -m benchmarks tables

# everything, from a clean checkout, as continuous integration does it
ci:
    .ci/run
