"""``sgoif close``: add up what a training has written that ended without ``monitor.close()``."""

from __future__ import annotations

import shlex

from sgoif.cli.options import Json, RunPath
from sgoif.cli.output import clean, count, emit_json, print_lines


def close(run: RunPath, as_json: Json = False) -> None:
    """Add up the visits of a training that was killed or never closed, without probabilities."""
    from sgoif.closing import close_run

    number = close_run(run)
    if as_json:
        return emit_json("close", run=run, examples=number)
    print_lines([f"{count(number, 'example')} in {clean(run)}; `sgoif issues {shlex.quote(clean(run))}` ranks them."])
