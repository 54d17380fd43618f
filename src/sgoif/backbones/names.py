"""Names of backbones: ``library:model`` for libraries that are known here, ``module:factory`` for code of one's own.

Nothing is imported but the standard library: the command line asks here whether a name means code to run.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Literal

from sgoif.errors import SgoifError
from sgoif.usercode import describe_error

__all__ = ["LIBRARIES", "Kind", "Library", "LibraryState", "describe_backbones", "is_user_code", "split_name"]

Kind = Literal["pictures", "texts"]


@dataclass(frozen=True, slots=True)
class Library:
    """A library that makes pretrained models by name."""

    prefix: str
    package: str  # as pip knows it
    module: str
    takes: tuple[Kind, ...]
    suggested: tuple[tuple[Kind, str], ...]  # a model to begin with, for each kind
    needs_torchvision: bool = False

    def find_version(self) -> str | None:
        """Give the version that is installed, or None."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def load(self) -> ModuleType:
        """Import the library.

        Raises:
            SgoifError: It is not installed, or cannot be imported; the message says what to install.
        """
        if self.find_version() is None:
            raise SgoifError(f"backbones `{self.prefix}:NAME` need the package {self.package}: {self.pip}.")
        try:
            return importlib.import_module(self.module)
        except Exception as error:  # whatever a library raises beside versions that it does not fit
            raise self.explain(error) from error

    def explain(self, error: Exception) -> SgoifError:
        """Say why the library cannot be imported: often because of a torchvision that does not fit torch."""
        broken = find_broken_torchvision()
        if broken is not None:
            removed = "" if self.needs_torchvision else ", or remove it (pip uninstall torchvision)"
            return SgoifError(
                f"{self.package} cannot be imported, because torchvision cannot: {broken}. Install the torchvision "
                f"that belongs to your torch (see pytorch.org){removed}."
            )
        return SgoifError(
            f"{self.package} {self.find_version()} cannot be imported: {describe_error(error)}. Try {self.pip} "
            "--upgrade."
        )

    @property
    def pip(self) -> str:
        """The command that installs it."""
        return f"pip install {self.package}"


_PICTURES: tuple[Kind, ...] = ("pictures",)
_TEXTS: tuple[Kind, ...] = ("texts",)
_MINILM = "sentence-transformers/all-MiniLM-L6-v2"

# In the order in which they are suggested.
LIBRARIES = (
    Library("timm", "timm", "timm", _PICTURES, (("pictures", "tf_efficientnet_lite0"),), needs_torchvision=True),
    Library("sentence", "sentence-transformers", "sentence_transformers", _TEXTS, (("texts", _MINILM),)),
    Library(
        "hf",
        "transformers",
        "transformers",
        ("pictures", "texts"),
        (("pictures", "facebook/dinov2-small"), ("texts", _MINILM)),
    ),
    Library(
        "torchvision",
        "torchvision",
        "torchvision",
        _PICTURES,
        (("pictures", "efficientnet_b0"),),
        needs_torchvision=True,
    ),
    Library(
        "open_clip",
        "open_clip_torch",
        "open_clip",
        ("pictures", "texts"),
        (("pictures", "ViT-B-32/laion2b_s34b_b79k"), ("texts", "ViT-B-32/laion2b_s34b_b79k")),
        needs_torchvision=True,
    ),
)
_BY_PREFIX = {library.prefix: library for library in LIBRARIES}


def is_user_code(name: str) -> bool:
    """Tell whether a backbone is code of the user's own, which runs only where its user asks for it.

    >>> is_user_code("timm:resnet18"), is_user_code("mymodels:dino")
    (False, True)
    """
    return name.partition(":")[0] not in _BY_PREFIX


def split_name(name: str) -> tuple[Library | None, str]:
    """Split ``library:model``; there is no library where the name is ``module:factory``.

    >>> library, model = split_name("hf:facebook/dinov2-small")
    >>> library.package, model
    ('transformers', 'facebook/dinov2-small')

    Raises:
        SgoifError: There is no colon, or nothing behind it.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or not prefix or not rest:
        raise SgoifError(f"a backbone is named {describe_forms()}; got {name!r}.")
    library = _BY_PREFIX.get(prefix)
    return (None, name) if library is None else (library, rest)


def describe_forms(kind: Kind | None = None) -> str:
    """List the forms that a name can have.

    >>> describe_forms("texts")
    'sentence:NAME, hf:NAME, open_clip:NAME, or module:factory'
    """
    return ", ".join([*(f"{one.prefix}:NAME" for one in _that_take(kind)), "or module:factory"])


def suggest_prefix(name: str) -> str:
    """Guess which library a misspelt prefix means: a sentence, or nothing."""
    close = difflib.get_close_matches(name.partition(":")[0].lower(), list(_BY_PREFIX), 1, cutoff=0.6)
    return f" Did you mean {close[0]}:{name.partition(':')[2]}?" if close else ""


@dataclass(frozen=True, slots=True)
class LibraryState:
    """What this machine has of one library."""

    prefix: str
    package: str
    version: str | None  # None: not installed
    problem: str | None  # why an installed one cannot be imported
    takes: tuple[Kind, ...]
    suggested: tuple[tuple[Kind, str], ...]  # models to begin with, by kind: ("texts", "hf:...")
    recommended: tuple[Kind, ...]  # kinds for which this library is the one to take here
    pip: str

    @property
    def is_usable(self) -> bool:
        """Whether its models can be loaded."""
        return self.version is not None and self.problem is None


def describe_backbones() -> list[LibraryState]:
    """Say which libraries are installed; of the usable ones, one is recommended for pictures and one for texts."""
    versions = {one.prefix: one.find_version() for one in LIBRARIES}
    has_torchvision = versions["torchvision"] is not None
    broken = find_broken_torchvision() if has_torchvision else None
    problems: dict[str, str | None] = {}
    for one in LIBRARIES:
        problems[one.prefix] = None
        if versions[one.prefix] is not None and broken is not None:
            problems[one.prefix] = f"torchvision cannot be imported: {broken}"
        elif versions[one.prefix] is not None and one.needs_torchvision and not has_torchvision:
            problems[one.prefix] = "it needs torchvision, which is not installed"
    usable = [one for one in LIBRARIES if versions[one.prefix] is not None and problems[one.prefix] is None]
    first = {kind: next((one.prefix for one in usable if kind in one.takes), None) for kind in ("pictures", "texts")}
    return [
        LibraryState(
            one.prefix,
            one.package,
            versions[one.prefix],
            problems[one.prefix],
            one.takes,
            tuple((kind, f"{one.prefix}:{model}") for kind, model in one.suggested),
            tuple(kind for kind in one.takes if first[kind] == one.prefix),
            one.pip,
        )
        for one in LIBRARIES
    ]


def find_broken_torchvision() -> str | None:
    """Say why an installed torchvision cannot be imported; None where it can, or where there is none.

    One that was built for another torch fails as it is imported, and takes timm, transformers and others with it.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        return None if error.name == "torchvision" else describe_error(error)
    except Exception as error:
        return describe_error(error)
    return None


def _that_take(kind: Kind | None) -> Iterable[Library]:
    return (one for one in LIBRARIES if kind is None or kind in one.takes)
