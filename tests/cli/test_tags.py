"""``sgoif issues`` and ``sgoif info`` of a multi-label run."""

import numpy as np
import pytest

from sgoif.store import ParquetSink
from tests.cli.runs import answer, read_output


def write(url, p, **facts):
    """Three examples with three tags each; the first has a tag too many, the second lacks one."""
    ids, count = np.array(["a", "b", "c"]), 9
    signals = {"loss": np.linspace(0, 1, count), "harm": np.zeros(count), "worst": np.zeros(count)}
    tags = {
        "id": np.repeat(ids, 3),
        "tag": np.tile(np.arange(3), 3),
        "given": np.array([1, 1, 0, 0, 1, 0, 0, 0, 1], bool),
        "n_visits": np.full(count, 6),
        "p_wrong": np.asarray(p),
        "p_wrong_low": np.asarray(p) - 0.01,
        "p_wrong_high": np.asarray(p) + 0.01,
        **signals,
    }
    sink = ParquetSink(url, keep_visits="none")
    sink.write_table("examples", {"id": ids, "n_visits": np.full(3, 6), "confidence": np.ones(3)})
    sink.write_table("tags", tags)
    common = {"task": "multilabel", "class_names": ["sky", "sea", "dog"], "held_out_per_tag": [4, 5, 6], "held_out": 9}
    sink.write_info({**common, "num_present": 4, "num_absent": 5, "num_pairs": 9, "trusted": True, **facts})
    sink.close()


@pytest.fixture
def run(tmp_path):
    p = [0.95, 0.1, 0.02, 0.05, 0.1, 0.8, 0.02, 0.03, 0.04]
    write(tmp_path / "run", p, expected_tag_errors={"extra": 1.1, "missing": 0.9}, share_noticed=0.9)
    return tmp_path / "run"


def test_tags_are_listed_with_their_verdicts(run):
    shown = read_output("issues", run, "--top", 2)
    assert "Extra tags: 1 estimated among 4 given." in shown
    assert "90% would be noticed" in shown
    lines = [line.split() for line in shown.splitlines() if line[:2] in ("1 ", "2 ")]
    assert lines[0][1:5] == ["a", "sky", "extra", "tag"] and lines[1][1:5] == ["b", "dog", "missing", "tag"]
    document = answer("issues", run, "--min-p", 0.5)
    assert [row["id"] for row in document["issues"]] == ["a", "b"]
    assert document["summary"]["expected_errors"] == {"extra": 1.1, "missing": 0.9}
    assert {row["tag_name"] for row in answer("issues", run, "--class", "dog")["issues"]} == {"dog"}


def test_the_list_is_written_and_info_tells_of_tags(run, tmp_path):
    out = tmp_path / "tags.csv"
    assert "9 tags written" in read_output("issues", run, "--top", 0, "--csv", out)
    assert out.read_text().splitlines()[0].startswith("id,tag,tag_name,verdict,p_wrong")
    shown = read_output("info", run)
    assert "missing tags" in shown and "3 examples" not in shown.splitlines()[0]
    document = answer("info", run)
    assert document["rows"]["tags"] == 9 and document["summary"]["num_tags"] == 3


def test_a_run_without_probabilities_is_ranked_by_loss(tmp_path):
    write(tmp_path / "run", np.full(9, np.nan), calibration_error="SgoifError: odd")
    shown = read_output("issues", tmp_path / "run", "--top", 1)
    assert "Not calibrated, so ranked by loss" in shown and "odd" in shown
    assert answer("issues", tmp_path / "run", "--top", 1)["issues"][0]["id"] == "c"
