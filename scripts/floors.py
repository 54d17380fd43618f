"""Print the oldest version of every dependency that pyproject.toml allows, as constraints for pip.

    python scripts/floors.py --without torch >floors.txt
    python scripts/floors.py >floors.txt

There is no second list: an environment made with these constraints tests what the package declares.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def read_requirements(extras: Iterable[str] = (), path: Path = PYPROJECT) -> Iterator[Requirement]:
    """Give the requirements of the package and of the extras named, where their markers hold for this Python."""
    with path.open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    optional = project["optional-dependencies"]
    for line in [*project["dependencies"], *(line for extra in extras for line in optional[extra])]:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def find_floor(requirement: Requirement) -> str:
    """Give the version behind ``>=``.

    Raises:
        ValueError: There is none: the oldest version that works is not stated.
    """
    floors = [part.version for part in requirement.specifier if part.operator == ">="]
    if len(floors) != 1:
        raise ValueError(f"'{requirement}' needs exactly one '>=': the oldest version that passes the tests")
    return floors[0]


def main(arguments: list[str] | None = None) -> int:
    """Print ``name==version`` for each requirement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extra", action="append", default=[], help="an extra whose dependencies are printed too")
    parser.add_argument("--without", action="append", default=[], help="a package that is left out")
    given = parser.parse_args(arguments)
    left_out = {canonicalize_name(name) for name in given.without}
    for requirement in read_requirements(given.extra):
        if canonicalize_name(requirement.name) not in left_out:
            print(f"{requirement.name}=={find_floor(requirement)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
