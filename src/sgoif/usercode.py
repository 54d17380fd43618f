"""Code of the user's own, by ``module:name``: where it is looked for, and who is named when it fails.

It runs only where somebody names it on the command line or in Python; a file from elsewhere cannot ask for it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from sgoif.errors import SgoifError

__all__ = ["describe_error", "import_named", "is_named"]

_NAMED = re.compile(r"[A-Za-z_][\w.]+:[A-Za-z_][\w.]*")  # two letters at least before the colon: C:photos is a path

_searched: set[str] = set()  # what this module put on the path


def is_named(text: str) -> bool:
    """Tell whether a text has the form ``module:name``.

    >>> is_named("mymodels:dino"), is_named("s3://bucket/x"), is_named("C:photos")
    (True, False, False)
    """
    return _NAMED.fullmatch(text) is not None


def import_named(name: str, what: str) -> Any:
    """Import ``module:name``; the current folder is searched last, so that nothing in it hides an installed package.

    Args:
        name: a module and what it holds.
        what: what it is for, for messages: ``--model``, ``the backbone``.

    Raises:
        SgoifError: The form is another, there is no such thing, the module raises as it is imported, or two modules
            have its name.
    """
    module, _, attribute = name.partition(":")
    if not is_named(name):
        raise SgoifError(f"{what} takes module:factory, for example mypackage.models:resnet, got {name!r}.")
    _search_here()
    _refuse_namesake(module.partition(".")[0], Path.cwd())
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except SgoifError:
        raise
    except (ImportError, AttributeError) as error:
        raise SgoifError(f"{what} {name!r} cannot be found: {error}.") from error
    except Exception as error:  # the module's own top level
        raise SgoifError(f"{what} {name!r} cannot be imported: {describe_error(error)}.") from error
    return found


def describe_error(error: BaseException) -> str:
    """Say what the user's code raised and where: the last line of a file that is neither torch's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    foreign = [f for f in frames if not f.filename.startswith((ours, "<frozen")) and "site-packages" not in f.filename]
    last = [*frames, *foreign][-1:]
    where = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)
    text = (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def _search_here() -> None:
    """Put the current folder at the end of the path, in place of one that was current before."""
    here = os.getcwd()
    for folder in _searched - {here}:
        if folder in sys.path:
            sys.path.remove(folder)
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
        _searched.add(here)
    _searched.intersection_update({here})


def _refuse_namesake(top: str, here: Path) -> None:
    """Raise where the current folder has a module of this name and another one is found first."""
    own = [path for path in (here / top / "__init__.py", here / f"{top}.py") if path.is_file()]
    first = importlib.machinery.PathFinder.find_spec(top)
    place = None if first is None else first.origin
    if not own or place is None or not os.path.exists(place) or any(os.path.samefile(path, place) for path in own):
        return
    raise SgoifError(
        f"two modules are called {top!r}: {own[0]} and {place}, which is installed and comes first. Rename yours, or "
        "set PYTHONPATH=. to have yours first."
    )
