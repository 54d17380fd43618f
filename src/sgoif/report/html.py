"""One HTML file with its own style, script and data, and a policy that lets it run these and connect to nowhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

__all__ = ["Assets", "render_html"]


@dataclass(frozen=True, slots=True)
class Assets:
    """Which files of the folder ``assets`` a page is made of."""

    template: str
    scripts: Sequence[str]  # in their order, without suffix
    styles: Sequence[str] = ("page",)


def render_html(assets: Assets, document: Mapping[str, Any], *, pictures: str = "data:", **shown: Any) -> str:
    """Write a page.

    Args:
        assets: what it is made of.
        document: what its script works on.
        pictures: where pictures may come from, as in a content security policy.
        shown: what the template shows; escaped there.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    style, script = "".join(_read_asset(f"{name}.css") for name in assets.styles), _join_scripts(assets.scripts)
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_read_asset(assets.template))
    return template.render(
        policy=_policy(style, script, pictures),
        style=Markup(style),
        script=Markup(script),
        document=Markup(_as_script_data(document)),
        **shown,
    )


def _as_script_data(document: Mapping[str, Any]) -> str:
    r"""Write JSON that ends no script element and starts no comment, whatever it holds.

    >>> _as_script_data({"id": "</script><!--"})
    '{"id":"\\u003c/script\\u003e\\u003c!--"}'
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "backslashreplace").decode()


def _policy(style: str, script: str, pictures: str) -> str:
    """What the browser may do: this very script and style, pictures as chosen, and no connection at all."""
    return (
        f"default-src 'none'; img-src {pictures}; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _join_scripts(names: Sequence[str]) -> str:
    parts = "\n".join(_read_asset(f"{name}.js") for name in names)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _read_asset(name: str) -> str:
    return (resources.files("sgoif.report") / "assets" / name).read_text(encoding="utf-8")
