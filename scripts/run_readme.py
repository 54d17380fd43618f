"""Run the programs of README.md, in order, in a folder of their own: with the package that this interpreter has.

python scripts/run_readme.py
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def main() -> None:
    """Run each block of Python with the names of those before it."""
    import sgoif

    if Path(sgoif.__file__).is_relative_to(README.parent):
        sys.exit("This interpreter has the checkout, not the wheel.")
    names: dict[str, object] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for block in re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M):
            exec(compile(block, README.name, "exec"), names)


if __name__ == "__main__":
    main()
