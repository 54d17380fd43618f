"""``sgoif check``: exit codes on runs whose error rates are known, and reports that other programs read."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from sgoif.cli.options import parse_share
from sgoif.errors import SgoifError
from tests.cli.runs import NASTY, golden, invoke, noisy, read_refusal, verified, without_probabilities, write_run

CATS = range(30)  # that are wrong


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """7.5% of all labels are wrong, 30% of the cats; what was checked finds 7.5%, 90% interval 6.4-14.3%."""
    folder = tmp_path_factory.mktemp("check")
    url = write_run(folder / "run", noisy((0.3, 0.0, 0.0, 0.0)))
    verified(url, folder, wrong=CATS)
    return url


def test_a_limit_is_exceeded_when_the_lower_end_lies_above_it(run):
    for limits, code, state in (
        (["--max-error-rate", "15%"], 0, "fine"),
        (["--max-error-rate", "0.073"], 2, "unsure"),  # the rate lies above, its lower end does not
        (["--max-error-rate", "5%"], 1, "exceeded"),
        (["--max-class-error-rate", "10%"], 1, "exceeded"),
        (["--max-class-error-rate", "35%"], 0, "fine"),
        (["--max-error-rate", "15%", "--max-class-error-rate", "10%"], 1, "exceeded"),
        (["--max-class-error-rate", "30%"], 2, "unsure"),
    ):
        done = invoke("check", run, *limits, "--json")
        document = json.loads(done.stdout)
        assert (done.exit_code, document["exit_code"], document["state"]) == (code, code, state), limits
        for item in document["outcomes"]:
            assert (item["low"] > item["limit"]) == (item["state"] == "exceeded")
            assert (item["high"] <= item["limit"]) == (item["state"] == "fine")


def test_what_it_prints_was_approved(run, monkeypatch):
    monkeypatch.chdir(Path(run).parent)
    done = invoke("check", "run", "--max-error-rate", "2%", "--max-class-error-rate", "10%")
    golden("check.txt", done.stdout)


def test_what_the_run_thinks_is_no_figure_to_judge_by(tmp_path):
    """With a verified hold-out too: 252 errors were estimated where 400 were planted (training.md, sym-2, trusted)."""
    run = write_run(tmp_path / "run", noisy((0.0, 0.0, 0.0, 0.0)), trusted=True)
    done = invoke("check", run, "--max-error-rate", "50%")
    assert done.exit_code == 2 and "nobody has checked labels" in done.stdout and "sgoif verify" in done.stdout


@pytest.mark.parametrize("case", ["no run", "uncalibrated", "too few", "killed", "half judged", "no class judged"])
def test_what_cannot_be_judged_is_neither_fine_nor_exceeded(tmp_path, case):
    examples, limits = noisy(), ["--max-error-rate", "1%"]
    if case == "uncalibrated":
        examples = without_probabilities(examples)
    elif case == "too few":
        examples = {name: column[:19] for name, column in examples.items()}
    elif case == "half judged":
        examples["p_mislabeled"][:201] = np.nan
    elif case == "no class judged":
        examples, limits = noisy(per_class=10), ["--max-class-error-rate", "1%"]
    elif case == "killed":
        examples = None
    if case != "no run":
        write_run(tmp_path / "run", examples, is_finished=case != "killed")
    done = invoke("check", tmp_path / "run", *limits, "--junit", tmp_path / "j.xml", "--summary", tmp_path / "s.md")
    assert done.exit_code == 2
    assert "could not judge" in done.stdout
    root = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert root.find(".//error") is not None or root.find(".//skipped") is not None
    assert "could not judge" in (tmp_path / "s.md").read_text(encoding="utf-8")


_SPOILED = {
    "hold-out": {"warnings": {"trained_on_anchors": "212 of 212 hold-out examples were trained on in all."}},
    "positions": {"warnings": {"batch_positions": "the ids of all 75 steps so far were 0..63."}},
    "few ids": {"warnings": {"few_ids": "4755 visits had 400 different ids, where train_size=1585."}},
    "refused": {"counters": {"visits_offered": 4755, "visits_refused": 4435}, "visits_refused": {"64 ids": 4435}},
    "lost": {"counters": {"visits_offered": 4755, "visits_lost": 2400}, "visits_lost": {"OSError": 2400}},
    "few seen": {"counters": {"visits_offered": 4755}, "train_size": 1585},
}


@pytest.mark.parametrize("case", _SPOILED)
def test_a_run_that_was_set_up_wrongly_is_not_judged(tmp_path, case):
    """Before, all of them were within all limits."""
    run = write_run(tmp_path / "run", noisy((0.0, 0.0, 0.0, 0.0)), **_SPOILED[case])
    done = invoke("check", run, "--max-error-rate", "2%", "--junit", tmp_path / "j.xml")
    assert done.exit_code == 2 and "cannot be trusted" in done.stdout
    assert ElementTree.parse(tmp_path / "j.xml").getroot().find(".//error") is not None
    assert "Warning: " in invoke("issues", run).stdout
    assert invoke("info", run).stdout.count("warning") == 1


_HARMLESS = {
    "cost": ({"warnings": {"overhead": "costs 40% of the bare step."}}, False),
    "a few refused": ({"counters": {"visits_offered": 4755, "visits_refused": 100}}, False),
    "unlabelled": ({"counters": {"visits_offered": 800, "visits_refused": 700, "visits_ignored": 700}}, True),
    "a sample": ({"counters": {"visits_offered": 400, "visits_passed_over": 1200}, "train_size": 1600}, True),
    "damaged": ({"warnings": ["odd"], "train_size": "large"}, False),
}


@pytest.mark.parametrize("case", _HARMLESS)
def test_what_does_not_spoil_the_figures_does_not_keep_it_from_judging(tmp_path, case):
    facts, is_told = _HARMLESS[case]
    run = write_run(tmp_path / "run", noisy((0.0, 0.0, 0.0, 0.0)), **facts)
    verified(run, tmp_path, wrong=())
    assert invoke("check", run, "--max-error-rate", "10%").exit_code == 0
    assert ("Warning: " in invoke("issues", run).stdout) == is_told


def test_a_model_is_not_praised_for_examples_that_it_was_trained_on(tmp_path):
    competence = {"accuracy": 0.94, "num_examples": 212, "chance": 0.25, "majority": 0.25, "is_competent": True}
    told = {"trained_on_anchors": "212 of 212 hold-out examples were trained on in all."}
    run = write_run(tmp_path / "run", noisy(), competence=competence, warnings=told)
    for command in (["issues", run], ["check", run, "--max-error-rate", "2%"]):
        shown = " ".join(invoke(*command).stdout.split())
        assert "of its hold-out, on which it was trained" in shown and "not trained on" not in shown


def test_a_class_that_is_too_small_is_skipped_beside_others_that_are_not(tmp_path):
    examples = noisy((0.0, 0.0, 0.0, 0.5))
    kept = np.arange(305)  # five foxes are left
    run = write_run(tmp_path / "run", {name: column[kept] for name, column in examples.items()})
    done = invoke("check", run, "--max-class-error-rate", "5%", "--junit", tmp_path / "j.xml")
    assert done.exit_code == 0
    assert re.search(r"fox +not judged", done.stdout)
    cases = ElementTree.parse(tmp_path / "j.xml").getroot().findall(".//testcase")
    assert [case.find("skipped") is not None for case in cases if case.get("name", "").startswith("fox")] == [True]


def test_new_findings_are_counted_against_an_older_run(run, tmp_path):
    newer = write_run(tmp_path / "newer", noisy((0.3, 0.1, 0.0, 0.0)))  # ten dogs more
    arguments = ["check", newer, "--against", run, "--max-new"]
    assert invoke(*arguments, 10).exit_code == 0
    done = invoke(*arguments, 9)
    assert done.exit_code == 1 and "10 newly flagged" in done.stdout
    assert invoke("check", newer, "--against", tmp_path / "none", "--max-new", 9).exit_code == 2


def test_reports_hold_any_class_name(tmp_path):
    run = write_run(tmp_path / "a run <&>", noisy(ids=[f"<i>{i}</i>|\x00" for i in range(400)]), names=NASTY)
    xml, page = tmp_path / "j.xml", tmp_path / "s.md"
    done = invoke("check", run, "--max-class-error-rate", "10%", "--junit", xml, "--summary", page)
    assert done.exit_code == 1
    assert "\x1b" not in done.stdout
    root = ElementTree.parse(xml).getroot()
    assert root.get("tests") == "4" and root.get("failures") == "1" and root.get("errors") == "0"
    cases = root.findall("./testsuite/testcase")
    assert len(cases) == 4
    named = [case.get("name") for case in cases]
    assert f"{NASTY[0]} <= 10%" in named and f"{NASTY[1]} <= 10%" in named
    failures = [case.find("failure") for case in cases if case.find("failure") is not None]
    assert len(failures) == 1 and all("range 28-31%" in failure.get("message") for failure in failures)
    text = page.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1  # every row has as many cells
    assert "<b>" not in text and "<i>" not in text and "\x1b" not in text and "\x00" not in text


def test_github_gets_its_summary_added_to_others(run, tmp_path, monkeypatch):
    page = tmp_path / "summary.md"
    arguments = ("check", run, "--max-error-rate", "2%", "--summary", page)
    page.write_text("before\n")
    invoke(*arguments)
    assert not page.read_text(encoding="utf-8").startswith("before")
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    invoke(*arguments)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and "a limit is exceeded" in text


@pytest.mark.parametrize(
    ("text", "share"),
    [("2%", 0.02), (" 2.5 % ", 0.025), ("0.02", 0.02), ("0", 0), ("100%", 1), ("1", 1), ("1e-3", 0.001)],
)
def test_shares_are_read_as_people_write_them(text, share):
    assert parse_share(text, "--max-error-rate") == pytest.approx(share)


@pytest.mark.parametrize("text", ["200%", "-1%", "2", "nan", "inf", "two", "", "%", "2,5%"])
def test_shares_that_make_no_sense_are_refused(text):
    with pytest.raises(SgoifError, match="--max-error-rate takes a share"):
        parse_share(text, "--max-error-rate")


def test_limits_must_be_given_go_together_and_make_sense(run):
    for arguments, said in (
        (["--max-error-rate", "2"], "did you mean 2%?"),
        (["--max-error-rate=two"], "takes a share"),
        ([], "at least one"),
        (["--max-new", 3], "go together"),
        (["--max-error-rate", "2%", "--against", run], "go together"),
    ):
        assert said in read_refusal("check", run, *arguments)
