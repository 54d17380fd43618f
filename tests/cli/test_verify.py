"""``sgoif verify``: a random sample, a person's verdicts, and what they say of all labels."""

import csv
import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from sgoif.cli.main import app
from sgoif.review.verify import draw_list, read_lists
from sgoif.run import load
from tests.cli.runs import (
    NAMES,
    answer,
    document_of,
    invoke,
    number_of,
    read_output,
    read_refusal,
    table,
    verified,
    write_run,
)

COUNT = 2000


def write_examples(folder, count=COUNT, suspected=0.9, num_suspected=100, **facts):
    """Examples of four classes of which the first are suspected; nobody's hold-out is verified."""
    given = np.arange(count) % 4
    p = np.concatenate([np.full(num_suspected, suspected), np.full(count - num_suspected, 0.01)])
    return write_run(folder, table(p, given, (given + 1) % 4), trusted=False, **facts)


@pytest.fixture
def run(tmp_path):
    return write_examples(tmp_path / "run")


def ask(run, out, *more, say):
    """Answer the questions of the terminal, and return what it printed."""
    done = CliRunner().invoke(app, ["verify", run, "--out", str(out), *map(str, more)], input=say)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_sample_becomes_a_rate_with_an_interval(run, tmp_path):
    found = verified(run, tmp_path, wrong=range(80))
    share = found["all"]
    assert share["num_checked"] == 60 and share["low"] <= 0.04 <= share["high"]
    flagged = next(item for item in found["firsts"] if item["name"] == "flagged")
    assert flagged["count"] == 100 and flagged["low"] <= 0.8 <= flagged["high"]
    assert json.loads((tmp_path / "run" / "checked.json").read_text())["all"] == share
    assert load(run).info["checked"]["all"] == share
    said = read_output("info", run)
    assert "checked labels" in said and "90% interval" in said


def test_the_page_tells_nothing_but_examples_and_labels(run, tmp_path):
    answer("verify", run, "--page", tmp_path / "check.html")
    document = document_of(tmp_path / "check.html")
    cards = document["cards"]
    assert document["sample"] and len(cards["id"]) == 60
    assert not any(value for name in ("p", "low", "high", "confidence", "visits") for value in cards[name])
    assert set(map(tuple, cards["suggested"])) == {()} and set(cards["why"]) == {""}
    assert not any(document["beside"]["typical"].values())  # no pictures, so nothing to compare with
    # the order does not tell suspects from the rest either: ranks of a random order have no trend
    ranks = [int(ident[4:-4]) for ident in cards["id"]]
    assert abs(np.corrcoef(np.arange(60), ranks)[0, 1]) < 0.35


def test_the_same_seed_draws_the_same_sample_and_another_one_another(run):
    sql = load(run).sql
    first, again, other = (draw_list(sql, {}, run, seed=seed) for seed in (0, 0, 1))
    assert first == again and first.list_id != other.list_id
    assert {card.id for card in first.cards} != {card.id for card in other.cards}


def test_two_samples_are_put_together(run, tmp_path):
    first = verified(run, tmp_path, wrong=range(80))
    answer("verify", run, "--page", tmp_path / "more.html", "--seed", 1)
    more = next(found for found in read_lists(run) if found.list_id not in first["lists"])
    rows = [f"{c.id},{c.given_label},{'none' if number_of(c) < 80 else 'keep'},{more.list_id}" for c in more.cards]
    (tmp_path / "more.csv").write_text("\n".join(["id,given_label,decision,list", *rows, ""]))
    files = ("--verdicts", tmp_path / "verdicts.csv", "--verdicts", tmp_path / "more.csv")
    both = answer("verify", run, *files)["all"]
    assert 110 < both["num_checked"] <= 120
    assert both["high"] - both["low"] < first["all"]["high"] - first["all"]["low"]


def test_cards_passed_over_count_as_unsure_and_cards_never_seen_do_not(run, tmp_path):
    found = verified(run, tmp_path, wrong=range(80), skip={3, *range(50, 60)}, unsure={5})
    assert found["all"]["num_unsure"] == 2 and found["num_open"] == 10
    assert found["all"]["num_checked"] == 48


def test_a_run_that_changed_does_not_use_what_was_checked_before(run, tmp_path):
    verified(run, tmp_path, wrong=range(80))
    old = tmp_path / "old"
    shutil.move(run, old)
    write_examples(run, suspected=0.8, num_suspected=200)
    shutil.copy(old / "checked.json", run)
    shutil.copytree(old / "verify", tmp_path / "run" / "verify")
    assert "checked" not in load(run).info
    done = invoke("check", run, "--max-error-rate", "50%")
    assert done.exit_code == 2 and "the run has changed since" in done.stdout
    assert "the run has changed since" in read_refusal("verify", run, "--verdicts", tmp_path / "verdicts.csv")


def test_what_is_no_verdict_on_the_sample_is_refused(run, tmp_path):
    path = tmp_path / "decisions.csv"
    path.write_text("id,given_label,decision,list\nimg/000.png,0,keep,somewhere\n")
    (tmp_path / "texts.csv").write_text("id,said\nother,hello\n")
    strange = ("--page", tmp_path / "c.html", "--table", tmp_path / "texts.csv", "--text", "said")
    for arguments, said in (
        (("--verdicts", path), "about a sample of this run"),
        (("--out", tmp_path / "v.jsonl"), "must end in .csv"),
        (strange, "in the column id"),
        (("--text", "job"), "goes with --table"),
        (("--table", path, "--images", tmp_path), "both say what examples are"),
    ):
        assert said in read_refusal("verify", run, *arguments)
    assert not (tmp_path / "v.jsonl").exists()


def test_the_terminal_asks_keeps_answers_and_goes_on(run, tmp_path):
    out = tmp_path / "verdicts.csv"
    first = ask(run, out, say="r\nx\nw\ndog\n?\nw\n\nq\n")
    assert "continues where you stopped" in first
    assert "labelled" in first and "Answer r, w, ? or q." in first
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["decision"] for row in rows][:3] in (["keep", "relabel", "unsure"], ["keep", "keep", "unsure"])
    assert rows[3]["decision"] == "none"
    second = ask(run, out, say="r\n" * 60)
    assert "\n5 of 60" in second and "\n4 of 60" not in second
    assert "Checked labels: 60" in second and (tmp_path / "run" / "checked.json").is_file()
    ask(run, out, "--seed", 1, say="r\nw\n")  # no class is named before the end
    assert len(out.read_text().splitlines()) == 1 + 60 + 1  # answers to another sample stay


def test_texts_are_shown_on_the_page_and_in_the_terminal(run, tmp_path):
    texts = tmp_path / "texts.csv"
    texts.write_text("id,said\n" + "".join(f"img/{i:03d}.png,what example {i} says\n" for i in range(COUNT)))
    how = ["--table", texts, "--text", "said"]
    answer("verify", run, "--page", tmp_path / "check.html", *how)
    document = document_of(tmp_path / "check.html")
    for ident, number in zip(document["cards"]["id"], document["cards"]["example"]):
        assert document["examples"][number]["text"] == f"what example {int(ident[4:-4])} says"
    assert "what example " in ask(run, tmp_path / "v.csv", *how, say="q\n")


def test_a_run_without_probabilities_can_be_verified(tmp_path):
    given = np.arange(500) % 4
    examples = table(np.full(500, np.nan), given, (given + 1) % 4)
    run = write_run(tmp_path / "run", examples, trusted=False, no_p_reason="the model is too weak")
    found = verified(run, tmp_path, wrong=range(10))
    assert found["all"]["num_checked"] == 60
    assert [item["name"] for item in found["firsts"]] == ["top 1%", "top 5%", "top 10%"]
    said = read_output("info", run)
    assert "checked labels" in said and "no: the model is too weak" in said


def test_check_is_fine_or_exceeded_by_checked_labels_and_unsure_between(run, tmp_path):
    done = invoke("check", run, "--max-error-rate", "20%")
    assert done.exit_code == 2 and "nobody has checked labels" in done.stdout and "sgoif verify" in done.stdout
    verified(run, tmp_path, wrong=range(80))
    found = {limit: invoke("check", run, "--max-error-rate", limit) for limit in ("20%", "4%", "0.1%")}
    assert [done.exit_code for done in found.values()] == [0, 2, 1]
    assert "check about 150" in found["4%"].stdout
    done = invoke("check", run, "--max-class-error-rate", "50%")  # a sample does not judge classes
    assert done.exit_code == 2 and "verified hold-out" in done.stdout


def test_a_file_of_figures_that_nobody_wrote_is_not_believed(run, tmp_path):
    verified(run, tmp_path, wrong=range(80))
    path = tmp_path / "run" / "checked.json"
    document = json.loads(path.read_text())
    spoilt = (
        {**document, "state": 3},
        {**document, "firsts": [{}]},
        {**document, "all": {**document["all"], "count": "x"}},
        {"format": 1},
        {"format": 1, "all": {"value": 2}},
        {"format": 9},
    )
    for text in ("", "[]", "{}", "nonsense", "[" * 9999, *map(json.dumps, spoilt)):
        path.write_text(text)
        assert "checked" not in load(run).info, text
    done = invoke("check", run, "--max-error-rate", "50%")
    assert done.exit_code == 2 and "checked.json of this run cannot be read" in done.stdout
    read_output("info", run)


def test_a_sample_that_nobody_drew_is_an_error_that_names_the_file(run, tmp_path):
    verified(run, tmp_path, wrong=())
    for text in ("{}", "[]", "nonsense", '{"format": 2}', '{"format": 1, "design": {}}'):
        (tmp_path / "run" / "verify" / "other.json").write_text(text)
        assert "verify/other.json" in read_refusal("verify", run, "--verdicts", tmp_path / "verdicts.csv")


@pytest.mark.parametrize(("warning", "is_refused"), [("batch_positions", True), ("trained_on_anchors", False)])
def test_a_run_that_does_not_know_its_examples_cannot_be_sampled(tmp_path, warning, is_refused):
    run = write_examples(tmp_path / "run", 500, num_suspected=0, warnings={warning: "something was noticed."})
    if is_refused:
        assert "something was noticed" in read_refusal("verify", run, "--page", tmp_path / "check.html")
    else:
        told = " ".join(read_output("verify", run, "--page", tmp_path / "check.html").split())
        assert "download the verdicts. Then: sgoif verify" in told
        verified(run, tmp_path, wrong=())
        assert invoke("check", run, "--max-error-rate", "10%").exit_code == 0


def test_a_wrong_label_that_is_named_again_is_asked_about_once_more(run, tmp_path):
    out = tmp_path / "verdicts.csv"
    first = draw_list(load(run).sql, {}, run).cards[0]
    given, other = (NAMES[(first.given_label + i) % 4] for i in (0, 1))
    assert f"{given} is the label that it has" in ask(run, out, say=f"w\n{given}\nw\n{other}\nq\n")
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert (row["decision"], row["given_name"], row["label_name"]) == ("relabel", given, other)


def test_more_cards_extend_a_sample(run, tmp_path):
    out = tmp_path / "verdicts.csv"
    ask(run, out, say="r\n" * 60)
    (small,) = read_lists(run)
    more = ask(run, out, "--cards", 120, say="r\n" * 60)
    assert "\n61 of 120" in more and "\n60 of 120" not in more and "Checked labels: 120" in more
    large = next(found for found in read_lists(run) if found.list_id != small.list_id)
    assert large.cards[:60] == small.cards and len({card.key for card in large.cards}) == 120
    numbers = [sum(card.stratum == i for card in large.cards) for i in range(len(large.design.num_cards))]
    assert tuple(numbers) == large.design.num_cards and large.extends == small.list_id
    told = read_output("verify", run, "--page", tmp_path / "check.html", "--cards", 120)
    assert "first 60 are those of the sample drawn before" in told and "--verdicts EARLIER.csv" in told


def test_an_extension_is_as_random_as_a_sample_drawn_at_once(run):
    sql, first = load(run).sql, []
    for seed in range(40):
        small = draw_list(sql, {}, run, num_cards=20, seed=seed)
        large = draw_list(sql, {}, run, num_cards=60, seed=seed, earlier=[small])
        first += [number_of(card) for card in large.cards[20:] if card.stratum == large.cards[0].stratum]
    ranks = np.sort(first) / max(first)
    assert abs(ranks.mean() - np.mean([min(first) / max(first), 1])) < 0.1  # no half of a stratum is preferred


def test_a_table_shows_all_columns_of_a_row_but_the_label(run, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,age,job\n" + "".join(f"img/{i:03d}.png,{i % 90},clerk\n" for i in range(COUNT)))
    answer("verify", run, "--page", tmp_path / "check.html", "--table", rows)
    document = document_of(tmp_path / "check.html")
    assert document["columns"] == ["age", "job"]
    assert [item["row"]["1"] for item in document["examples"]][:60] == ["clerk"] * 60
    rows.write_text("id,text,age,label\n" + "".join(f"img/{i:03d}.png,says {i},{i},cat\n" for i in range(COUNT)))
    asked = ask(run, tmp_path / "v.csv", "--table", rows, say="q\n")
    assert "text: says" in asked and "; age: " in asked and "label: cat" not in asked
