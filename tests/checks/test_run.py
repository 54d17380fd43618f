"""A run gives its issues as a table, and ``sgoif check-data`` shows them."""

import pytest

from sgoif import load
from sgoif.checks import KINDS, find_data_issues
from sgoif.errors import SgoifError
from sgoif.run import Run
from sgoif.tables import MemoryTables
from tests.checks.worlds import clean, pairs
from tests.cli.runs import answer, invoke, noisy, write_run


@pytest.fixture(scope="module")
def found():
    features = clean().features
    features[[1, 3]] = features[[0, 2]]
    data = clean(duplicates=pairs([("x0", "x1", 0), ("x2", "x3", 0)]), features=features)
    return [issue.to_dict() for issue in find_data_issues(data)]


def test_a_run_gives_one_row_per_check_the_worst_first(found, tmp_path):
    table = load(write_run(tmp_path / "run", noisy(), data_issues=found)).data_issues()
    assert sorted(table["kind"].to_pylist()) == sorted(KINDS)
    assert table == Run({"data_issues": found}, MemoryTables({})).data_issues()
    first = table.slice(0, 1).to_pylist()[0]
    assert first["kind"] in ("exact_duplicates", "conflicting_duplicates")
    unknown = [row for row in table.to_pylist() if row["count"] is None]
    assert unknown and all(row["why_not"] for row in unknown)
    assert table["severity"].to_pylist()[-len(unknown) :] == ["unknown"] * len(unknown)


def test_damaged_issues_are_an_error_of_the_file():
    with pytest.raises(SgoifError, match="damaged"):
        Run({"data_issues": [{"kind": "outliers", "count": "many"}]}, MemoryTables({})).data_issues()


def test_the_command_shows_what_was_found_and_what_was_not_checked(found, tmp_path):
    run = write_run(tmp_path / "run", noisy(), data_issues=found)
    done = invoke("check-data", run)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        f"{sum(issue['severity'] in ('high', 'medium', 'low') for issue in found)} of {len(KINDS)} "
    )
    assert (
        any(line.startswith("exact duplicates: 2 examples are the same as another") for line in lines)
        and "  x1, x3" in lines
    )
    assert "Not checked:" in lines and any("the run has no pictures" in line for line in lines)


def test_the_command_writes_json_and_csv(found, tmp_path):
    run = write_run(tmp_path / "run", noisy(), data_issues=found)
    document = answer("check-data", run, "--top", 1)
    assert document["num_checks"] == len(KINDS) == len(document["issues"])
    copies = next(issue for issue in document["issues"] if issue["kind"] == "exact_duplicates")
    assert copies["count"] == 2 and copies["ids"] == ["x1"]
    assert invoke("check-data", run, "--csv", tmp_path / "issues.csv").exit_code == 0
    text = (tmp_path / "issues.csv").read_text(encoding="utf-8-sig")
    assert text.startswith("kind,severity,title,") and "x1\nx3" in text


def test_the_command_says_what_to_do_without_issues(tmp_path):
    done = invoke("check-data", write_run(tmp_path / "run", noisy()))
    assert done.exit_code == 2 and "sgoif scan" in done.stderr and done.stdout == ""
