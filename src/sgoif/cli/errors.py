"""Where every command's errors end: one red line for a user's mistake, and the exit code that says what happened.

0 fine; 1 a limit of ``check`` was exceeded, or ``sentinel`` raised an alarm; 2 a mistake, or ``check`` could not judge;
3 an error in sgoif itself; 130 interrupted; 141 the reader of a pipe went away.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from typer import Abort
from typer.core import TyperGroup

from sgoif.cli.command import hide_types
from sgoif.errors import SgoifError

FINE, EXCEEDED, MISTAKE, BUG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 130, 141


class Front(TyperGroup):
    """The group of all commands; ``--debug`` may stand anywhere among the arguments."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the program itself."""
        return hide_types(super().get_params(ctx))

    def main(  # type: ignore[override]  # the rest is typer's own, by keyword
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run a command and turn what it raises into a line and an exit code."""
        given = list(sys.argv[1:] if args is None else args)
        is_debug = "--debug" in given or os.environ.get("SGOIF_DEBUG") == "1"
        given = [item for item in given if item != "--debug"] or ["--help"]
        _keep_printing()
        try:
            found = super().main(given, standalone_mode=False, **{**extra, "prog_name": "sgoif"})
            code = found if isinstance(found, int) else FINE
            sys.stdout.flush()
        except BrokenPipeError:
            code = _leave_pipe()
        except SystemExit as leaving:
            if not isinstance(leaving.__context__, BrokenPipeError):  # typer makes an exit of one
                raise
            code = _leave_pipe()
        except (KeyboardInterrupt, Abort) as leaving:
            cause = leaving.__cause__ or leaving.__context__
            if isinstance(cause, EOFError):  # of a file that was cut; click takes it for the end of what is typed
                code = _tell(cause, is_debug)
            else:
                print("interrupted", file=sys.stderr)
                code = INTERRUPTED
        except Exception as error:
            code = _tell(error, is_debug)
        if standalone_mode:
            sys.exit(code)
        return code


def _tell(error: Exception, is_debug: bool) -> int:
    """Print what went wrong, and return the exit code for it."""
    if is_debug:
        traceback.print_exception(error)
    code, line = _explain(error, is_debug)
    _print_red(line)
    return code


def _explain(error: Exception, is_debug: bool) -> tuple[int, str]:
    """An exit code and one line for what went wrong."""
    if hasattr(error, "format_message"):  # a mistake in the options; typer's own classes differ by version
        context = getattr(error, "ctx", None)
        where = "sgoif" if context is None else str(context.command_path)
        message = str(error.format_message()).strip().rstrip(".")
        return MISTAKE, f"{message}. See `{where} --help`."
    if isinstance(error, SgoifError):
        return MISTAKE, str(error)
    if isinstance(error, OSError):
        place = f"'{error.filename}': " if error.filename else ""
        return MISTAKE, f"{place}{error.strerror or error}."
    hint = "" if is_debug else " Run it again with --debug for the traceback, and report it."
    return BUG, f"an error in sgoif itself, {type(error).__name__}: {error}.{hint}"


def _print_red(line: str) -> None:
    from sgoif.cli.output import clean, stderr_console

    shown = " ".join(clean(part) for part in line.split())
    stderr_console().print(f"Error: {shown}", style="red")


def _keep_printing() -> None:
    """Characters that the terminal's encoding lacks are written as escapes, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _leave_pipe() -> int:
    """Python flushes standard output when it ends; there must be something to flush into."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, sys.stdout.fileno())
    return BROKEN_PIPE
