"""Lines of progress where there is no terminal."""

import re
import time

from sgoif.cli.progress import ProgressLines, progress_bars


def test_a_stage_has_a_line_when_it_begins_and_when_it_ends(capsys):
    with progress_bars() as report:
        for done in range(101):
            report("reading", done, 100)
        report("judging", 0, 1)
    lines = [re.sub(r"\d+ s$", "T", line) for line in capsys.readouterr().err.splitlines()]
    assert lines == ["reading: 0 of 100, T", "reading: 100 of 100, T", "judging: 0 of 1, T"]


def test_a_stage_that_reports_nothing_for_long_still_has_lines(capsys):
    lines = ProgressLines(every_s=0.05)
    lines.report("training", 1, 3)
    end = time.monotonic() + 10
    printed = ""
    while printed.count("training: 1 of 3") < 3 and time.monotonic() < end:
        time.sleep(0.02)
        printed += capsys.readouterr().err
    lines.close()
    assert printed.count("training: 1 of 3") >= 3
    capsys.readouterr()
    time.sleep(0.15)
    assert capsys.readouterr().err == ""  # nothing more after the end
