"""Rewrite the tables of every page: ``python -m benchmarks.tables``."""

from __future__ import annotations

import sys

from benchmarks.tables.pages import pages, rewritten


def main() -> None:
    for path in pages():
        before = path.read_text()
        after = rewritten(before)
        if before != after:
            path.write_text(after)
            print(f"{path.name} was rewritten", file=sys.stderr)


if __name__ == "__main__":
    main()
