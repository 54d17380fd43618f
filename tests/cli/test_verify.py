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
from tests.cli.runs import answer, invoke, number_of, table, verified, write_run

COUNT = 2000


@pytest.fixture
def run(tmp_path):
    """2,000 examples of four classes, nobody's hold-out verified, 100 suspected."""
    given = np.arange(COUNT) % 4
    p = np.concatenate([np.full(100, 0.9), np.full(COUNT - 100, 0.01)])
    return write_run(tmp_path / "run", table(p, given, (given + 1) % 4), trusted=False)


def test_a_sample_becomes_a_rate_with_an_interval(run, tmp_path):
    found = verified(run, tmp_path, wrong=range(80))
    share = found["all"]
    assert share["num_checked"] == 60 and share["low"] <= 0.04 <= share["high"]
    flagged = next(item for item in found["firsts"] if item["name"] == "flagged")
    assert flagged["count"] == 100 and flagged["low"] <= 0.8 <= flagged["high"]
    assert json.loads((tmp_path / "run" / "checked.json").read_text())["all"] == share
    assert load(run).info["checked"]["all"] == share
    said = invoke("info", run).stdout
    assert "checked labels" in said and "90% interval" in said


def test_the_page_tells_nothing_but_examples_and_labels(run, tmp_path):
    answer("verify", run, "--page", tmp_path / "check.html")
    page = (tmp_path / "check.html").read_text()
    document = json.loads(page.split('id="document">')[1].split("</script>")[0])
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
    lists = [tmp_path / "verdicts.csv"]
    answer("verify", run, "--page", tmp_path / "more.html", "--seed", 1)
    more = next(found for found in read_lists(run) if found.list_id not in first["lists"])
    with open(tmp_path / "more.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "given_label", "decision", "list"])
        rows.writerows(
            [card.id, card.given_label, "none" if number_of(card) < 80 else "keep", more.list_id] for card in more.cards
        )
    found = answer("verify", run, *(part for path in [*lists, tmp_path / "more.csv"] for part in ("--verdicts", path)))
    assert 110 < found["all"]["num_checked"] <= 120
    assert found["all"]["high"] - found["all"]["low"] < first["all"]["high"] - first["all"]["low"]


def test_cards_passed_over_count_as_unsure_and_cards_never_seen_do_not(run, tmp_path):
    found = verified(run, tmp_path, wrong=range(80), skip={3, *range(50, 60)}, unsure={5})
    assert found["all"]["num_unsure"] == 2 and found["num_open"] == 10
    assert found["all"]["num_checked"] == 48


def test_a_run_that_changed_does_not_use_what_was_checked_before(run, tmp_path):
    verified(run, tmp_path, wrong=range(80))
    given = np.arange(COUNT) % 4
    p = np.concatenate([np.full(200, 0.8), np.full(COUNT - 200, 0.02)])
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "run" / "verify", kept)
    checked = (tmp_path / "run" / "checked.json").read_text()
    shutil.rmtree(tmp_path / "run")
    write_run(tmp_path / "run", table(p, given, (given + 1) % 4), trusted=False)
    (tmp_path / "run" / "checked.json").write_text(checked)
    shutil.copytree(kept, tmp_path / "run" / "verify")
    assert "checked" not in load(run).info
    done = invoke("check", run, "--max-error-rate", "50%")
    assert done.exit_code == 2 and "the run has changed since" in done.stdout
    done = invoke("verify", run, "--verdicts", tmp_path / "verdicts.csv")
    assert done.exit_code == 2 and "the run has changed since" in done.stderr


def test_verdicts_of_another_list_are_refused(run, tmp_path):
    path = tmp_path / "decisions.csv"
    path.write_text("id,given_label,decision,list\nimg/000.png,0,keep,somewhere\n")
    done = invoke("verify", run, "--verdicts", path)
    assert done.exit_code == 2 and "about a sample of this run" in done.stderr


def test_answers_of_the_terminal_are_written_as_csv_alone(run, tmp_path):
    done = CliRunner().invoke(app, ["verify", run, "--out", str(tmp_path / "v.jsonl")], input="r\nq\n")
    assert done.exit_code == 2 and "must end in .csv" in done.output and not (tmp_path / "v.jsonl").exists()


def test_the_terminal_asks_keeps_answers_and_goes_on(run, tmp_path):
    out = tmp_path / "verdicts.csv"
    first = CliRunner().invoke(app, ["verify", run, "--out", str(out)], input="r\nx\nw\ndog\n?\nw\n\nq\n")
    assert first.exit_code == 0 and "continues where you stopped" in first.output
    assert "labelled" in first.output and "Answer r, w, ? or q." in first.output
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["decision"] for row in rows][:3] in (["keep", "relabel", "unsure"], ["keep", "keep", "unsure"])
    assert rows[3]["decision"] == "none"
    second = CliRunner().invoke(app, ["verify", run, "--out", str(out)], input="r\n" * 60)
    assert second.exit_code == 0, second.output
    assert "\n5 of 60" in second.output and "\n4 of 60" not in second.output
    assert "Checked labels: 60" in second.output and (tmp_path / "run" / "checked.json").is_file()
    ended = CliRunner().invoke(app, ["verify", run, "--out", str(out), "--seed", "1"], input="r\nw\n")  # no class named
    assert ended.exit_code == 0, ended.output
    assert len(out.read_text().splitlines()) == 1 + 60 + 1  # answers to another sample stay


def test_texts_are_shown_on_the_page_and_in_the_terminal(run, tmp_path):
    texts = tmp_path / "texts.csv"
    texts.write_text("id,said\n" + "".join(f"img/{i:03d}.png,what example {i} says\n" for i in range(COUNT)))
    how = ["--table", str(texts), "--text", "said"]
    answer("verify", run, "--page", tmp_path / "check.html", *how)
    document = json.loads((tmp_path / "check.html").read_text().split('id="document">')[1].split("</script>")[0])
    for ident, number in zip(document["cards"]["id"], document["cards"]["example"]):
        assert document["examples"][number]["text"] == f"what example {int(ident[4:-4])} says"
    asked = CliRunner().invoke(app, ["verify", run, "--out", str(tmp_path / "v.csv"), *how], input="q\n")
    assert "what example " in asked.output


def test_a_table_that_knows_none_of_the_examples_is_refused(run, tmp_path):
    (tmp_path / "texts.csv").write_text("id,said\nother,hello\n")
    done = invoke("verify", run, "--page", tmp_path / "c.html", "--table", tmp_path / "texts.csv", "--text", "said")
    assert done.exit_code == 2 and "in the column id" in done.stderr


def test_a_run_without_probabilities_can_be_verified(tmp_path):
    given = np.arange(500) % 4
    examples = table(np.full(500, np.nan), given, (given + 1) % 4)
    run = write_run(tmp_path / "run", examples, trusted=False, no_p_reason="the model is too weak")
    found = verified(run, tmp_path, wrong=range(10))
    assert found["all"]["num_checked"] == 60
    assert [item["name"] for item in found["firsts"]] == ["top 1%", "top 5%", "top 10%"]
    said = invoke("info", run).stdout
    assert "checked labels" in said and "no: the model is too weak" in said


def test_check_is_fine_or_exceeded_by_checked_labels_and_unsure_between(run, tmp_path):
    done = invoke("check", run, "--max-error-rate", "20%")
    assert done.exit_code == 2 and "nobody has checked labels" in done.stdout and "sgoif verify" in done.stdout
    verified(run, tmp_path, wrong=range(80))
    codes = {limit: invoke("check", run, "--max-error-rate", limit).exit_code for limit in ("50%", "20%", "4%", "0.1%")}
    assert codes == {"50%": 0, "20%": 0, "4%": 2, "0.1%": 1}
    assert "check about 150" in invoke("check", run, "--max-error-rate", "4%").stdout


def test_a_sample_does_not_judge_classes(run, tmp_path):
    verified(run, tmp_path, wrong=())
    done = invoke("check", run, "--max-class-error-rate", "50%")
    assert done.exit_code == 2 and "verified hold-out" in done.stdout


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 1}', '{"format": 1, "all": {"value": 2}}', '{"format": 9}', "nonsense", "[" * 9999],
)
def test_a_file_of_figures_that_nobody_wrote_is_not_believed(run, tmp_path, text):
    (tmp_path / "run" / "checked.json").write_text(text)
    done = invoke("check", run, "--max-error-rate", "50%")
    assert done.exit_code == 2 and "checked.json of this run cannot be read" in done.stdout
    assert invoke("info", run).exit_code == 0


def test_figures_with_a_part_missing_are_not_believed(run, tmp_path):
    verified(run, tmp_path, wrong=range(80))
    path = tmp_path / "run" / "checked.json"
    document = json.loads(path.read_text())
    for spoilt in (
        {**document, "state": 3},
        {**document, "firsts": [{}]},
        {**document, "all": {**document["all"], "count": "x"}},
    ):
        path.write_text(json.dumps(spoilt))
        assert "checked" not in load(run).info


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"format": 2}', '{"format": 1, "design": {}}'])
def test_a_sample_that_nobody_drew_is_an_error_that_names_the_file(run, tmp_path, text):
    verified(run, tmp_path, wrong=())
    (tmp_path / "run" / "verify" / "other.json").write_text(text)
    done = invoke("verify", run, "--verdicts", tmp_path / "verdicts.csv")
    assert done.exit_code == 2 and "verify/other.json" in done.stderr


@pytest.mark.parametrize(("warning", "is_refused"), [("batch_positions", True), ("trained_on_anchors", False)])
def test_a_run_that_does_not_know_its_examples_cannot_be_sampled(tmp_path, warning, is_refused):
    given = np.arange(500) % 4
    examples = table(np.full(500, 0.01), given, (given + 1) % 4)
    run = write_run(tmp_path / "run", examples, trusted=False, warnings={warning: "something was noticed."})
    done = invoke("verify", run, "--page", tmp_path / "check.html")
    assert done.exit_code == (2 if is_refused else 0)
    assert ("something was noticed" in done.stderr) == is_refused
    if not is_refused:
        verified(run, tmp_path, wrong=())
        assert invoke("check", run, "--max-error-rate", "10%").exit_code == 0


def test_a_wrong_label_that_is_named_again_is_asked_about_once_more(run, tmp_path):
    out = tmp_path / "verdicts.csv"
    first = draw_list(load(run).sql, {}, run).cards[0]
    given, other = (("cat", "dog", "bird", "fox")[(first.given_label + i) % 4] for i in (0, 1))
    done = CliRunner().invoke(app, ["verify", run, "--out", str(out)], input=f"w\n{given}\nw\n{other}\nq\n")
    assert done.exit_code == 0 and f"{given} is the label that it has" in done.output
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert (row["decision"], row["given_name"], row["label_name"]) == ("relabel", given, other)


def test_more_cards_extend_a_sample(run, tmp_path):
    out = tmp_path / "verdicts.csv"
    assert CliRunner().invoke(app, ["verify", run, "--out", str(out)], input="r\n" * 60).exit_code == 0
    (small,) = read_lists(run)
    more = CliRunner().invoke(app, ["verify", run, "--out", str(out), "--cards", "120"], input="r\n" * 60)
    assert more.exit_code == 0 and "\n61 of 120" in more.output and "\n60 of 120" not in more.output
    assert "Checked labels: 120" in more.output
    large = next(found for found in read_lists(run) if found.list_id != small.list_id)
    assert large.cards[:60] == small.cards and len({card.key for card in large.cards}) == 120
    numbers = [sum(card.stratum == i for card in large.cards) for i in range(len(large.design.num_cards))]
    assert tuple(numbers) == large.design.num_cards and large.extends == small.list_id
    told = invoke("verify", run, "--page", tmp_path / "check.html", "--cards", 120).stdout
    assert "first 60 are those of the sample drawn before" in told and "--verdicts EARLIER.csv" in told


def test_an_extension_is_as_random_as_a_sample_drawn_at_once(run):
    sql, first = load(run).sql, []
    for seed in range(40):
        small = draw_list(sql, {}, run, num_cards=20, seed=seed)
        large = draw_list(sql, {}, run, num_cards=60, seed=seed, earlier=[small])
        first += [number_of(card) for card in large.cards[20:] if card.stratum == large.cards[0].stratum]
    ranks = np.sort(first) / max(first)
    assert abs(ranks.mean() - np.mean([min(first) / max(first), 1])) < 0.1  # no half of a stratum is preferred


def test_a_table_shows_all_columns_of_a_row(run, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,age,job\n" + "".join(f"img/{i:03d}.png,{i % 90},clerk\n" for i in range(COUNT)))
    answer("verify", run, "--page", tmp_path / "check.html", "--table", rows)
    document = json.loads((tmp_path / "check.html").read_text().split('id="document">')[1].split("</script>")[0])
    assert document["columns"] == ["age", "job"]
    assert [item["row"]["1"] for item in document["examples"]][:60] == ["clerk"] * 60
    asked = CliRunner().invoke(
        app, ["verify", run, "--out", str(tmp_path / "v.csv"), "--table", str(rows)], input="q\n"
    )
    assert "job: clerk" in asked.output
    assert "goes with --table" in invoke("verify", run, "--text", "job").stderr
    both = invoke("verify", run, "--table", rows, "--images", tmp_path)
    assert both.exit_code == 2 and "both say what examples are" in both.stderr


def test_a_table_with_a_text_and_other_columns_shows_all_of_them(run, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,text,age,label\n" + "".join(f"img/{i:03d}.png,says {i},{i},cat\n" for i in range(COUNT)))
    asked = CliRunner().invoke(app, ["verify", run, "--out", str(tmp_path / "v"), "--table", str(rows)], input="q\n")
    assert "text: says" in asked.output and "; age: " in asked.output and "label: cat" not in asked.output
