"""``sgoif trace``: what Algorithm 1 of the paper did at each refresh of a training, by the paper's symbols."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from sgoif.cli.options import Json, MaybeInt, RunPath
from sgoif.cli.output import emit_json, print_lines, print_table
from sgoif.cli.run import open_run
from sgoif.errors import SgoifError

_MEANS = {  # column of the table of anchors, by the paper's symbol
    "g_v": "g_norm",
    "r_v": "residual",
    "tau": "tau",
    "c_v": "confidence",
    "beta": "beta",
    "Gamma": "gamma",
    "E_curv": "curvature_gap",
    "E_lin": "drift",
}
_COUNTS = {"refined": "refinements", "replaced": "replacements", "reset": "resets"}
_ABOUT = (
    "|g_v|, |r_v|/|g_v|, tau, c_v, beta and Gamma as in the paper (Eq. 1-4), means over the anchors shown; E_curv and "
    "E_lin relative to |g_v|, E_proj to |g_z|^2; lambda_min of the Gram matrix (Eq. 6); anchors refined, replaced and "
    "reset so far. beta is 0 and Gamma 1 where the gate does not look at them."
)


def trace(
    run: RunPath,
    anchor: Annotated[MaybeInt, typer.Option(metavar="N", min=0, help="Show the anchor of this number alone.")] = None,
    last: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show this many of the last refreshes; 0 shows all.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show the quantities of the paper's algorithm at each refresh of a watched training."""
    table = open_run(run).anchors()
    columns = {name: table[name].to_numpy() for name in table.column_names}  # null becomes NaN
    rows = describe(columns, anchor, last)
    if as_json:
        return emit_json("trace", run=run, anchor=anchor, refreshes=rows)
    print_lines([_ABOUT, ""])
    shown = {name: (lambda row, name=name: _show(row[name])) for name in rows[0]}
    print_table(rows, shown, right=list(shown))


def describe(columns: dict[str, NDArray[Any]], anchor: int | None = None, last: int = 0) -> list[dict[str, Any]]:
    """One row for each of the last refreshes (0: of all), later attempts in the place of earlier ones.

    Raises:
        SgoifError: the run has no such table, or no such anchor.
    """
    if not len(columns.get("refresh_step", ())):
        raise SgoifError("this run has no table of anchors: trainings under sgoif.watch write one, at each refresh.")
    if anchor is not None:
        mine = columns["anchor"] == anchor
        if not mine.any():
            raise SgoifError(f"this run has no anchor {anchor}; its anchors are 0 to {int(columns['anchor'].max())}.")
        columns = {name: values[mine] for name, values in columns.items()}
    return [_summarise(columns, int(step)) for step in np.unique(columns["refresh_step"])[-last:]]


def _summarise(columns: dict[str, NDArray[Any]], step: int) -> dict[str, Any]:
    here = columns["refresh_step"] == step
    here &= columns["attempt"] == columns["attempt"][here].max()
    found: dict[str, Any] = {"t": step}
    for symbol, name in _MEANS.items():
        found[symbol] = _mean(columns[name][here]) if name in columns else float("nan")
    found["E_proj"] = 1 - _mean(columns["coverage"][here]) if "coverage" in columns else float("nan")
    smallest = columns.get("smallest_eigenvalue")
    found["lambda_min"] = float("nan") if smallest is None else float(smallest[here][0])
    return found | {symbol: int(columns[name][here].sum()) for symbol, name in _COUNTS.items() if name in columns}


def _mean(values: NDArray[Any]) -> float:
    """Of those that are numbers; anchors that were never drawn have none."""
    values = values.astype(float)
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _show(value: float) -> str:
    return str(value) if isinstance(value, int) else "-" if np.isnan(value) else f"{value:.3g}"
