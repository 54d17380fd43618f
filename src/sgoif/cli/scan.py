"""``sgoif scan``: a folder of pictures in, a run and its worst labels out; and the flat YAML file that repeats a scan.

Every value in that file is written as JSON, which is YAML too. Reading takes what people write by hand as well: bare
words, single quotes, comments.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sgoif.backbones.names import is_user_code
from sgoif.cli.issues import show_labels, show_values
from sgoif.cli.options import Json, MaybeInt, MaybeText, MaybeTexts
from sgoif.cli.output import clean, count, emit_json, print_lines, shorten
from sgoif.cli.progress import progress_bars
from sgoif.cli.run import open_run
from sgoif.errors import SgoifError
from sgoif.usercode import is_named

if TYPE_CHECKING:
    from sgoif.run import Run

_SHOWN = 8  # findings, a line each
_IN_JSON = 20
_SETTINGS_FILE = "scan.yaml"
_LEFT_OUT = (
    *("without_label", "unreadable", "unreadable_pictures", "not_finite"),
    *("outliers", "outlier_ids", "clamped_values", "feature_order", "notes"),
)
_NAMED = 3  # ids in a line
_REASONS = 5  # lines about examples that were not judged


def scan(
    data: Annotated[
        MaybeText,
        typer.Argument(
            metavar="DATA",
            help="Read class folders, CSV, TSV, JSONL, Parquet, Arrow, tar shards or a Hugging Face folder.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        MaybeText,
        typer.Option(
            metavar="RUN", help="Write the run to this folder or URL; by default, to a new folder in sgoif-runs."
        ),
    ] = None,
    label: Annotated[
        MaybeTexts,
        typer.Option(
            metavar="COLUMN",
            help="Take labels from this column, found by its name if left out. Repeat it for several annotators.",
        ),
    ] = None,
    text: Annotated[
        MaybeText, typer.Option(metavar="COLUMN", help="Judge the text in this column, found by its name if left out.")
    ] = None,
    image: Annotated[
        MaybeText,
        typer.Option(
            metavar="COLUMN",
            help="Judge the picture in this column, or at this path below the table; found by its name if left out.",
        ),
    ] = None,
    id: Annotated[
        MaybeText,
        typer.Option(
            metavar="COLUMN", help="Take ids from this column, found by its name; without one, ids are row numbers."
        ),
    ] = None,
    group: Annotated[
        MaybeText, typer.Option(metavar="COLUMN", help="Compare groups by this column: camera, vendor, patient.")
    ] = None,
    split: Annotated[
        MaybeText, typer.Option(metavar="COLUMN", help="Find leakage between the splits that this column names.")
    ] = None,
    sql: Annotated[
        MaybeText,
        typer.Option(metavar="SELECT", help="Read the answer to this query; DATA is then a DuckDB file or left out."),
    ] = None,
    features: Annotated[
        MaybeText,
        typer.Option(
            metavar="FILE|COLUMN",
            help="Use these embeddings: a column of lists; .npy with a row per example in the order of the data "
            "(sorted paths of a folder, rows of a table); or by id: .npz with `ids` and `features`, .parquet or .csv "
            "with a column `id`.",
        ),
    ] = None,
    feature_ids: Annotated[
        MaybeText, typer.Option(metavar="FILE", help="Read the ids of the rows of a .npy file, one per line.")
    ] = None,
    backbone: Annotated[
        MaybeText,
        typer.Option(
            metavar="NAME",
            help="Make embeddings by a frozen model: timm:NAME, torchvision:NAME, open_clip:NAME, hf:NAME, "
            "sentence:NAME, or module:factory of your own. `sgoif doctor` says which libraries are installed.",
        ),
    ] = None,
    weights: Annotated[
        MaybeText,
        typer.Option(metavar="FILE", help="Load the backbone's weights from this file, for machines without network."),
    ] = None,
    device: Annotated[MaybeText, typer.Option(metavar="DEVICE", help="Run the backbone here; cpu by default.")] = None,
    task: Annotated[
        MaybeText,
        typer.Option(metavar="classification|regression", help="Choose regression for labels that are values."),
    ] = None,
    verified: Annotated[
        MaybeText,
        typer.Option(metavar="FILE.csv", help="Take these labels (id,label) for the truth: a person has checked them."),
    ] = None,
    seed: Annotated[
        MaybeInt, typer.Option(metavar="N", min=0, help="Draw everything random from this seed; 0 by default.")
    ] = None,
    config: Annotated[
        MaybeText,
        typer.Option(
            metavar="scan.yaml",
            help="Repeat the scan of this file; options override it, and --backbone must be given again.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the wrong labels of a dataset: pictures, texts, tables or embeddings."""
    import sgoif
    from sgoif.files.locations import place_of
    from sgoif.scanning.loop import scan as scan_data
    from sgoif.store.info import find_info

    options: dict[str, Any] = {"data": data, "label": _one_or_several(label), "text": text, "image": image, "id": id}
    options |= {"group": group, "split": split, "sql": sql, "features": features, "feature_ids": feature_ids}
    options |= {"backbone": backbone, "weights": weights, "device": device, "task": task}
    options |= {"verified": verified, "seed": seed}
    settings = merge_settings(config, options)
    where = out or default_out(settings.data or "query")
    place = place_of(where)
    if find_info(place) is not None:
        raise SgoifError(f"'{where}' holds a run already; name another folder with --out, or none for a new one.")
    written = settings_text(settings, sgoif.__version__).encode()
    is_written = False

    with progress_bars() as bars:

        def progress(stage: str, done: int, total: int) -> None:
            nonlocal is_written
            if not is_written:  # the work has begun: should it be killed, it can be repeated
                place.write(_SETTINGS_FILE, written)
                is_written = True
            bars(stage, done, total)

        scan_data(**asdict(settings), out=where, progress=progress)
    place.write(_SETTINGS_FILE, written)
    run = open_run(where, takes_values=True)
    found = run.summary()
    top = _IN_JSON if as_json else _SHOWN
    table = run.value_issues(top=top) if run.has_values else run.label_issues(top=top)
    if as_json:
        left_out = {name: run.info.get(name) for name in _LEFT_OUT}
        document = {"run": where, "settings": asdict(settings), "summary": found.document(), "left_out": left_out}
        return emit_json("scan", **document, issues=table.to_pylist())
    print_lines([*found.lines(), *describe_left_out(run), ""])
    if run.has_values:
        show_values(table.to_pylist(), is_calibrated=run.is_calibrated, is_brief=True)
    else:
        show_labels(run, table, is_brief=True)
    step = _next_step(run, where, is_query=settings.sql is not None)
    print_lines(["", f"The run is in {where}. Next, look at the findings and decide:", f"  {step}"])


def _next_step(run: Run, where: str, *, is_query: bool) -> str:
    """The command that most people need after a scan; the answer to a query is not kept, and values have no page."""
    shown = shlex.quote(where)
    if run.has_values:
        return f"sgoif issues {shown} --top 200 --csv review.csv"
    can_show = run.info.get("examples_are") is not None and not is_query
    return f"sgoif report {shown}{' --images run' if can_show else ''} --out report.html"


def describe_left_out(run: Run) -> list[str]:
    """Say which examples a scan could not read or not judge, and what it took for granted."""
    from sgoif.scanning.loop import UNREADABLE_FILE

    facts = run.info
    notes = facts.get("notes")
    lines = [clean(note) for note in notes] if isinstance(notes, list) else []
    order = facts.get("feature_order")
    if order:
        lines.append(f"Embeddings were given to examples {clean(order)}.")
    if facts.get("path") == "features" and facts.get("has_pictures") is True:
        lines.append(
            "Pictures were not opened: with --features, broken ones are judged by their embedding like the rest."
        )
    number = _number(facts, "unreadable")
    if number:
        ids = [item.get("id") for item in facts.get("unreadable_pictures") or () if isinstance(item, dict)]
        listed = f"listed with the reasons in {clean(run.files.url.rstrip('/'))}/{UNREADABLE_FILE}"
        lines.append(f"{count(number, 'picture')} could not be read: {_some(ids, number)}; {listed}.")
    if _number(facts, "without_label"):
        lines.append(f"{count(_number(facts, 'without_label'), 'example')} without a label left out.")
    number = _number(facts, "outliers")
    if number:
        lines.append(
            f"{count(number, 'embedding')} far outside all others, clamped at 10 standard deviations: "
            f"{_some(facts.get('outlier_ids'), number)}. Check what made them."
        )
    return [*lines, *_describe_unjudged(run)]


def _describe_unjudged(run: Run) -> list[str]:
    from sgoif.findings.suspects import columns_of

    if "no_p_reason" not in columns_of(run.sql, "examples") or not run.is_calibrated:
        return []
    query = "select no_p_reason as reason, count(*) as n, list(id order by id)[:3] as ids from examples "
    query += "where p_mislabeled is null and no_p_reason is not null group by 1 order by n desc, reason"
    rows = run.sql(query).to_pylist()
    lines = [
        f"Not judged: {count(row['n'], 'example')} ({_some(row['ids'], row['n'])}): {clean(row['reason'])}."
        for row in rows[:_REASONS]
    ]
    if len(rows) > _REASONS:
        rest = sum(row["n"] for row in rows[_REASONS:])
        lines.append(f"Not judged for other reasons: {count(rest, 'example')}; see the column no_p_reason.")
    return lines


def _number(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0


def _some(ids: Any, number: int) -> str:
    shown = [shorten(id, 80) for id in ids][:_NAMED] if isinstance(ids, list) else []
    return ", ".join(shown) + (", …" if number > len(shown) else "")


def default_out(data: str) -> str:
    """Name a new folder after the data and the time."""
    name = PurePosixPath(os.path.abspath(data).replace(os.sep, "/")).stem or "data"
    return f"sgoif-runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """What a scan is asked to do."""

    data: str | None
    label: str | list[str] | None = None
    text: str | None = None
    image: str | None = None
    id: str | None = None
    group: str | None = None
    split: str | None = None
    sql: str | None = None
    features: str | None = None
    feature_ids: str | None = None
    backbone: str | None = None
    weights: str | None = None
    device: str = "cpu"
    task: str = "classification"
    verified: str | None = None
    seed: int = 0


_FILES = ("data", "features", "feature_ids", "weights", "verified")


def settings_text(settings: ScanSettings, version: str) -> str:
    """Write settings as YAML; paths are made absolute, so that it works from any folder."""
    values = asdict(settings)
    for name in _FILES:
        path = values[name]
        is_column = name == "features" and not os.path.exists(path or "")
        if path is not None and "://" not in path and not is_column:
            values[name] = os.path.abspath(path)
    name = settings.backbone or ""
    code = f" --backbone {name}" if is_user_code(name) and is_named(name) else ""  # nothing that ends the line
    lines = [f"# Repeats this scan: sgoif scan --config scan.yaml{code}   (sgoif {version})"]
    return "\n".join([*lines, *(f"{name}: {json.dumps(value)}" for name, value in values.items())]) + "\n"


def read_settings(path: str) -> dict[str, Any]:
    """Read what a file of settings names; the rest is left to the command line.

    Raises:
        SgoifError: A line is not ``name: value``, or one of both is of the wrong kind; the message has the line.
    """
    known = [item.name for item in fields(ScanSettings)]
    found: dict[str, Any] = {}
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except UnicodeDecodeError as error:
        raise SgoifError(f"'{path}' is not UTF-8 text.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        name, colon, rest = line.partition(":")
        name = name.strip().strip("'\"")
        if not colon or name not in known:
            raise SgoifError(
                f"line {number} of '{path}' must be `name: value` with one of {', '.join(known)}: {line!r}."
            )
        found[name] = _check_value(name, _value(rest.strip()), f"line {number} of '{path}'")
    return found


def merge_settings(config: str | None, options: dict[str, Any]) -> ScanSettings:
    """Put what the command line says before what a file of settings says.

    A file may come with somebody else's run. So it can choose what is read, but not what code is run: a backbone that
    it names has to be named on the command line as well.

    Raises:
        SgoifError: No data is named, or the file names a backbone that the command line does not.
    """
    values = {} if config is None else read_settings(config)
    written = values.get("backbone")
    values |= {name: value for name, value in options.items() if value is not None}
    if written is not None and options.get("backbone") is None and is_user_code(written):
        raise SgoifError(
            f"'{config}' names code to import, backbone: {written!r}, and code in a file of settings is not run "
            f"unasked. If you trust it, add --backbone {shlex.quote(str(written))}."
        )
    if values.get("data") is None and values.get("sql") is None:
        raise SgoifError("name the DATA to scan: a folder of class folders, or a table (CSV, JSONL, Parquet).")
    return ScanSettings(**{"data": None, **values})


def _one_or_several(names: Sequence[str] | None) -> str | list[str] | None:
    return None if not names else names[0] if len(names) == 1 else list(names)


def _value(text: str) -> Any:
    try:
        value, end = json.JSONDecoder().raw_decode(text)
        if not text[end:].strip() or text[end:].lstrip().startswith("#"):
            return value
    except ValueError:
        pass
    quoted = re.match(r"'((?:[^']|'')*)'\s*(?:#.*)?$", text)
    if quoted:
        return quoted[1].replace("''", "'")
    bare = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    return None if bare in ("", "~", "null", "Null", "NULL") else bare


def _check_value(name: str, value: Any, where: str) -> Any:
    if value is None and name not in ("seed", "device", "task"):
        return None
    if name == "label" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if name == "seed":
        if isinstance(value, bool) or not isinstance(value, int):
            raise SgoifError(f"{where}: {name} must be a whole number, got {value!r}.")
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SgoifError(f"{where}: {name} must be text, got {value!r}.")
    return str(value)
