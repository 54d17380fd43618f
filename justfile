# Everything a contributor runs; `just` lists it. `.ci/run` runs the same recipes in fresh environments.

# One thread per process: two OpenMP threads on two busy cores spin against each other.
export OMP_NUM_THREADS := "1"
export MKL_NUM_THREADS := "1"

everything := "--doctest-modules --ignore src/sgoif/integrations --ignore tests/scoring/test_on_ray.py src/sgoif tests"

# list the recipes
default:
    @just --list

# install the package with its development tools into the active environment; torch first, of the build you want
setup:
    uv pip install --editable '.[dev]'

# style, types, import directions, spelling: a minute
lint:
    ruff check .
    ruff format --check .
    mypy
    lint-imports
    codespell

# known vulnerabilities of the oldest versions that are allowed, and of the installed ones
holes:
    python scripts/holes.py --floors
    python scripts/holes.py

# the tests nearest to the files that you changed, within a minute; or to the files named
quick *FILES:
    python scripts/quick.py {{FILES}}

# the tests that every change must pass, and those of the rooms that it touches
gate:
    python -m pytest -n 2 --dist loadgroup --tier gate {{everything}}

# all tests and the examples in docstrings, without Ray; or what the arguments tell pytest: `just test tests/linalg`
test *ARGS=everything:
    python -m pytest -n 2 --dist loadgroup {{ARGS}}

# the tests of scoring on Ray, which needs both cores to start
ray:
    PYTHONPATH=src:. python -m pytest tests/scoring/test_on_ray.py

# random user behaviour, commands and faults: other traces than the fixed ones that `test` repeats
traces NUMBER="400" SEED="0":
    SGOIF_TRACES={{NUMBER}} SGOIF_TRACE_SEED={{SEED}} python -m pytest -n 2 --hypothesis-seed={{SEED}} \
        tests/training/test_watch_machine.py tests/cli/test_command_machine.py tests/distributed/test_random_faults.py

# plant the faults of tests/mutants.toml and see whether the tests notice: hours for all, minutes for `just mutants linalg`
mutants *ARGS:
    python scripts/mutants.py {{ARGS}}

# the tests marked `floors`, against the installed package
floors:
    python -m pytest -n 2 --dist loadgroup -o pythonpath=. -m "floors and not slow"

# what must be green before a change is proposed
check: lint docs gate

# everything but what is weekly, in a fresh environment
nightly:
    .ci/run nightly

# longer truths, random traces, and planted faults, which take a night
weekly: slow traces mutants

# the tests marked `slow`, longer truths that take a minute or more each
slow:
    python -m pytest -n 2 --dist loadgroup -m slow tests

# write down what each test takes, which the gate and `just quick` choose by; a nightly run leaves the same in
# ~/.cache/sgoif-ci/test.json
seconds:
    just test --record-seconds tests/seconds.json {{everything}}

# the documentation, strictly
docs SITE="site":
    NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet --site-dir {{SITE}}

# a small slice of every benchmark, a few minutes; needs SGOIF_DATA
bench *ARGS:
    python -m benchmarks tier S {{ARGS}}

# the tables of docs/benchmarks from the raw results
tables:
    python -m benchmarks tables

# the outputs of docs/cli.md from the commands that it shows, two minutes
outputs:
    python -m tests.docs.cli_page

# sdist, wheel, SBOM and checksums into OUT; arguments go to scripts/release
release *ARGS:
    PYTHON=python scripts/release {{ARGS}}

# the gate in a fresh environment, as continuous integration runs it
ci:
    .ci/run
