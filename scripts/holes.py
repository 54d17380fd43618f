"""Compare the packages of an environment, or the declared floors, with the published holes listed in holes.toml.

    python scripts/holes.py            # the packages of this Python; exit 1 where one has a hole that sgoif reaches
    python scripts/holes.py --floors   # the oldest versions that pyproject.toml allows

The list is kept by hand and covers what sgoif uses. Where a vulnerability database can be reached, ask it as well:
`pip-audit --vulnerability-service osv` fails when it cannot ask; with its default service it reports nothing instead.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from floors import find_floor, read_requirements, tomllib
from pip._vendor.packaging.specifiers import SpecifierSet
from pip._vendor.packaging.utils import canonicalize_name

HOLES = Path(__file__).parent / "holes.toml"
EXTRAS = ("lightning", "transformers", "ray", "s3")


@dataclass(frozen=True)
class Hole:
    """One published hole."""

    package: str
    affected: str
    id: str
    reached: bool
    about: str
    python: str = ""  # the Python versions for which there is a release without it


def read_holes(path: Path = HOLES) -> list[Hole]:
    """Read the list."""
    with path.open("rb") as file:
        return [Hole(**entry) for entry in tomllib.load(file)["hole"]]


def find_installed() -> dict[str, str]:
    """Give the version of each package of this environment by its name."""
    return {canonicalize_name(found.name): found.version for found in importlib.metadata.distributions() if found.name}


def find_floors() -> dict[str, str]:
    """Give the oldest version that is allowed, of each dependency of the package and its extras.

    Where a release in the middle is left out (``!=``), the floor stands for the rest.
    """
    return {canonicalize_name(each.name): find_floor(each) for each in read_requirements(EXTRAS)}


def find_open(versions: dict[str, str], holes: list[Hole]) -> list[tuple[Hole, str]]:
    """Give the holes that these versions have, each with the version."""
    found = []
    for hole in holes:
        version = versions.get(canonicalize_name(hole.package))
        if version is not None and SpecifierSet(hole.affected).contains(version, prereleases=True):
            found.append((hole, version))
    return found


def is_fixable(hole: Hole) -> bool:
    """Say whether there is a release without the hole for this Python."""
    return not hole.python or SpecifierSet(hole.python).contains(platform.python_version(), prereleases=True)


def main(arguments: list[str] | None = None) -> int:
    """Print what was compared and what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--floors", action="store_true", help="the declared floors instead of this environment")
    versions = find_floors() if parser.parse_args(arguments).floors else find_installed()
    holes = read_holes()
    known = sorted({hole.package for hole in holes} & set(versions))
    print(f"{len(holes)} published holes; compared: {', '.join(f'{name} {versions[name]}' for name in known)}")
    code = 0
    for hole, version in find_open(versions, holes):
        is_bad = hole.reached and is_fixable(hole)
        code = 1 if is_bad else code
        print(f"{'FAIL' if is_bad else 'note'}  {hole.package} {version} has {hole.id} ({hole.affected}): {hole.about}")
    return code


if __name__ == "__main__":
    sys.exit(main())
