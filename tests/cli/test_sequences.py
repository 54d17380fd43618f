"""Runs of language models on the command line: ranked, explained by `info`, and written as JSONL."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import sgoif
from sgoif.cli.main import app
from sgoif.errors import SgoifError
from sgoif.sources.written import written_hash
from tests.cli.runs import answer, document_of, invoke, noisy, read_output, read_refusal, write_run
from tests.sequence_runs import write_sequence_run

IDS = ["a", "b\x1b[2J", "never judged", "d"]
HARM = np.array([[0.5, -0.1], [0.1, 0.9], [np.nan, np.nan], [-0.3, -0.2]])  # by group: math, code
LOSS = np.array([2.0, 1.0, 3.0, 0.5])


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_sequence_run("run", IDS, HARM, LOSS)


def write_lines(path, rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sequences_are_ranked_by_loss_and_harm_or_by_another_column(run):
    document = answer("issues", run)
    assert [row["id"] for row in document["issues"]] == [IDS[2], IDS[0], IDS[1], IDS[3]]
    assert document["issues"][0]["harm"] is None and document["issues"][0]["worst_group"] is None
    assert document["summary"]["num_judged"] == 3 and document["summary"]["groups"]["math"]["num_sequences"] == 5
    assert [row["id"] for row in answer("issues", run, "--rank-by", "harm", "--top", 2)["issues"]] == [IDS[1], IDS[0]]


def test_the_table_shows_harm_group_and_loss(run):
    printed = read_output("issues", run)
    lines = printed.splitlines()
    header = next(place for place, line in enumerate(lines) if "worst group" in line)
    shown = [line.split() for line in lines[header + 1 :] if line.strip() and not set(line) & set("─━")]
    assert shown[0][-7:] == ["3", "3", "?", "?", "?", "3", "1"]
    assert shown[1] == ["2", "a", "2.051", "2", "2", "0.2", "math", "0.5", "7", "3"]
    assert shown[2][-7:] == ["1", "1", "0.5", "code", "0.9", "1,200", "3"]
    assert "\x1b" not in printed and "No probabilities: " in printed


def test_texts_stand_beside_the_sequences(run):
    texts = [{"id": id, "text": f"text of {place}", "label": "x"} for place, id in enumerate(IDS)]
    write_lines("texts.jsonl", texts)
    assert "text of 2" in read_output("issues", run, "--show", "texts.jsonl")
    assert answer("issues", run, "--show", "texts.jsonl", "--top", 1)["issues"][0]["example"] == "text of 2"


def test_what_does_not_go_with_the_kind_of_the_run_is_refused(run, tmp_path):
    labels = write_run(tmp_path / "labels", noisy())
    for arguments, said in (
        (["issues", run, "--class", "cat"], "this run judged sequences"),
        (["issues", run, "--min-p", 0.5], "--min-p goes with labels"),
        (["issues", run, "--rank-by", "score"], "ranked by one of suspicion"),
        (["issues", run, "--rank-by", "conflict"], "a watched training does not find it"),
        (["duplicates", run], "an audit of the finished model does"),
        (["classes", run], "`issues`"),
        (["export", run, "--to", "cleanlab", "--out", "x.csv"], "`issues`"),
        (["report", run, "--reviewers", "Ann,Bo"], "--reviewers goes with labels"),
        (["report", run, "--blind"], "--blind goes with labels"),
        (["report", run, "--pictures", "none"], "--pictures goes with labels"),
        (["report", run, "--rank-by", "score"], "ranked by one of suspicion"),
        (["report", labels, "--rank-by", "harm"], "--rank-by goes with sequences"),
        (["report", labels, "--tokens", "x.jsonl"], "--tokens goes with sequences"),
        (["issues", labels, "--rank-by", "loss"], "this run judged labels"),
        (["export", labels, "--to", "cleanlab", "--out", "x.csv", "--rank-by", "harm"], "not with --to cleanlab"),
        (["export", labels, "--to", "jsonl", "--out", "x.jsonl"], "sequences of a language model"),
    ):
        assert said in read_refusal(*arguments), arguments
    assert not list(tmp_path.glob("x.*"))
    with pytest.raises(SgoifError, match="has no option 'blind'; it has images, top, ids, by, tokens"):
        sgoif.load(run).report("x.html", blind=True)


def test_info_tells_of_groups_and_of_no_hold_out(run):
    shown = read_output("info", run)
    assert "group math" in shown and "5 evaluation sequences" in shown
    assert "hold-out" not in shown and "only-unjudged" not in shown


def test_a_page_is_written_with_texts_or_says_how_to_give_them(run, tmp_path):
    printed = read_output("report", run)
    assert "--show FILE" in printed and "decisions.jsonl --out" in printed
    assert "--show train.jsonl" in (tmp_path / "report.html").read_text()
    write_lines("texts.jsonl", [{"id": id, "prompt": "p", "completion": "c"} for id in IDS])
    printed = read_output("report", run, "--show", "texts.jsonl", "--rank-by", "harm", "--top", 2, "--out", "r.html")
    assert "ids and numbers only" not in printed
    assert answer("report", run, "--images", "texts.jsonl")["images"] == "texts.jsonl"


def test_findings_are_written_as_jsonl_with_a_decision_to_fill_in(run):
    printed = read_output("export", run, "--to", "jsonl", "--out", "out/x.jsonl")
    assert "4 of 4 sequences written" in printed
    rows = [json.loads(line) for line in Path("out/x.jsonl").read_text().splitlines()]
    table = sgoif.load(run).sequence_issues().to_pylist()
    extra = ("harm_by_group", "decision")
    assert [{name: value for name, value in row.items() if name not in extra} for row in rows] == table
    assert rows[2]["harm_by_group"] == {"math": 0.1, "code": 0.9} and rows[0]["harm_by_group"] is None
    assert all(row["decision"] is None for row in rows)
    printed = read_output("export", run, "--to", "jsonl", "--out", "x.jsonl", "--top", 1)
    assert "1 of 4 sequences written" in printed and "--top 0 writes all" in printed
    printed = read_output("export", run, "--to", "jsonl", "--out", "x.jsonl", "--rank-by", "harm")
    assert "4 of 4 sequences written to x.jsonl, ranked by harm." in printed
    written = [json.loads(line)["id"] for line in Path("x.jsonl").read_text().splitlines()]
    assert written == sgoif.load(run).sequence_issues(by="harm")["id"].to_pylist() and written[0] == IDS[1]


def fill_in(path, run, decisions):
    """Export the findings, and fill in decisions by id."""
    read_output("export", run, "--to", "jsonl", "--out", "x.jsonl")
    rows = [json.loads(line) for line in Path("x.jsonl").read_text().splitlines()]
    return write_lines(path, [{**row, "decision": decisions.get(row["id"])} for row in rows])


def decide(run, *rows, out="m.parquet"):
    """Apply decisions, and return the manifest."""
    read_output("apply", run, write_lines("decided.jsonl", rows), "--out", out)
    return out


def tables_of(columns):
    """The same rows as tables of two libraries, and how their columns are read."""
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    return datasets.Dataset.from_dict(columns), pandas.DataFrame(columns)


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_decisions_come_back_as_a_manifest_to_train_on(run, end):
    fill_in("ann.jsonl", run, {"a": "drop", "d": "Keep", "b\x1b[2J": "drop"})
    fill_in("bo.jsonl", run, {"a": "drop", "d": "unsure", "b\x1b[2J": "keep"})
    out = f"manifest.{end}"
    printed = read_output("apply", run, "ann.jsonl", "bo.jsonl", "--out", out)
    assert "6 decisions read: ann 3, bo 3." in printed and "1 dropped" in printed
    assert "People disagree about 2 sequences" in printed
    document = answer("apply", run, "ann.jsonl", "--out", out)
    assert document["counts"] == {"keep": 1, "drop": 2, "edit": 0, "unsure": 0, "unreviewed": 1}
    items = [{"input_ids": [place], "labels": [place]} for place in range(4)]
    kept = sgoif.cleaned(sgoif.with_ids(items, IDS), out)
    assert [kept[i]["id"] for i in range(len(kept))] == ["never judged", "d"] == list(kept.ids)
    assert kept[1]["input_ids"] == [3]


CORRECTED = "=2;\n'new', text"  # what a spreadsheet would run, over two lines


def apply_edit(run, out="manifest.parquet", **columns):
    """Correct one completion, drop another sequence, and write the manifest."""
    edit = {"id": "d", "decision": "edit", "completion": CORRECTED, **columns}
    return decide(run, {"id": "a", "decision": "drop"}, edit, out=out)


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_a_corrected_completion_is_put_into_texts(run, end):
    manifest = apply_edit(run, f"m.{end}", content=written_hash("w"))
    texts = [{"prompt": p, "completion": c} for p, c in zip("pqrs", "tuvw")]
    kept = sgoif.cleaned(sgoif.with_ids(texts, IDS), manifest)
    assert [kept[i]["completion"] for i in range(3)] == ["u", "v", CORRECTED] and kept[2]["prompt"] == "s"
    talks = [{"messages": [{"role": "user", "content": p}, {"role": "assistant", "content": "w"}]} for p in "pqrs"]
    assert sgoif.cleaned(sgoif.with_ids(talks, IDS), manifest)[2]["messages"] == [
        {"role": "user", "content": "s"},
        {"role": "assistant", "content": CORRECTED},
    ]
    stream = sgoif.cleaned(iter([{"__key__": id, "text": "w"} for id in IDS]), manifest)
    assert [sample["text"] for sample in stream] == ["w", "w", CORRECTED]


def test_a_corrected_completion_is_put_into_tables(run):
    manifest = apply_edit(run)
    columns = {"id": IDS, "completion": list("tuvw"), "prompt": list("pqrs")}
    found, frame = (sgoif.cleaned(table, manifest) for table in tables_of(columns))
    assert found["completion"] == ["u", "v", CORRECTED] and found.column_names == list(columns)
    assert frame["completion"].tolist() == ["u", "v", CORRECTED]
    for tokenised in tables_of({**columns, "input_ids": [1] * 4}):
        with pytest.raises(SgoifError, match=r"tokenised already.*Sequences: 'd'"):
            sgoif.cleaned(tokenised, manifest)


def test_a_correction_that_cannot_be_applied_is_named(run):
    manifest = apply_edit(run, content=written_hash("w"))
    tokens = [{"input_ids": [place], "labels": [place], "text": "w"} for place in range(4)]
    with pytest.raises(SgoifError, match=r"tokenised already.*Sequences: 'd'"):
        sgoif.cleaned(sgoif.with_ids(tokens, IDS), manifest)
    for given in ("w", CORRECTED):
        assert sgoif.cleaned(sgoif.with_ids([{"completion": given}] * 4, IDS), manifest)[2]["completion"] == CORRECTED
    with pytest.raises(SgoifError, match="completion of 'd' in this dataset is not the one"):
        sgoif.cleaned(sgoif.with_ids([{"completion": "other"}] * 4, IDS), manifest)


def test_a_sequence_that_goes_is_the_one_that_was_reviewed(run):
    manifest = decide(run, {"id": "a", "decision": "drop", "content": written_hash("t")})

    def clean_each(completions):
        items = [{"id": id, "completion": text} for id, text in zip(IDS, completions)]
        samples = [{"__key__": id, "text": text} for id, text in zip(IDS, completions)]
        for table in tables_of({"id": IDS, "completion": completions}):
            yield lambda table=table: list(sgoif.cleaned(table, manifest)["id"])
        yield lambda: [item["id"] for item in sgoif.cleaned(items, manifest)]
        yield lambda: [sample["__key__"] for sample in sgoif.cleaned(iter(samples), manifest)]

    assert all(clean() == IDS[1:] for clean in clean_each(list("tuvw")))
    for clean in clean_each(list("uvwt")):
        with pytest.raises(SgoifError, match="completion of 'a' in this dataset is not the one that was reviewed"):
            clean()
    tokens = [{"id": id, "input_ids": [1], "labels": [1]} for id in IDS]  # have no text to compare
    assert [item["id"] for item in sgoif.cleaned(tokens, manifest)] == IDS[1:]


def test_items_with_numbers_for_ids_are_cleaned_by_these_and_not_by_position(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_sequence_run("run", [0, 1, 2, 3], HARM, LOSS)
    manifest = decide(run, {"id": 3, "decision": "drop"})
    items = [{"id": id, "input_ids": [id], "labels": [id]} for id in (3, 2, 1, 0)]
    assert [item["id"] for item in sgoif.cleaned(items, manifest)] == [2, 1, 0]
    with pytest.raises(SgoifError, match="has an id of its own, 3, which the position would replace"):
        sgoif.with_ids(items)[0]
    assert [item["id"] for item in sgoif.with_ids(items, list("abcd"))] == list("abcd")


def test_people_who_correct_a_completion_otherwise_disagree(run):
    for name, text in (("ann", "x"), ("bo", "y")):
        write_lines(f"{name}.jsonl", [{"id": "a", "decision": "edit", "completion": text}])
    found = answer("apply", run, "ann.jsonl", "bo.jsonl", "--out", "m.csv")
    assert found["disagreements"] == ["a"] and found["counts"]["edit"] == 0
    Path("bo.jsonl").write_text(Path("ann.jsonl").read_text())
    found = answer("apply", run, "ann.jsonl", "bo.jsonl", "--out", "m.csv")
    assert found["disagreements"] == [] and found["counts"]["edit"] == 1


def test_files_of_one_name_are_taken_for_one_person_and_that_is_said(run):
    for folder in ("ann", "bo"):
        Path(folder).mkdir()
        write_lines(f"{folder}/decisions.jsonl", [{"id": "a", "decision": "drop"}])
    printed = read_output("apply", run, "ann/decisions.jsonl", "bo/decisions.jsonl", "--out", "m.csv")
    assert "2 files are called decisions" in " ".join(printed.split())


def test_decisions_that_cannot_be_applied_are_named(run, tmp_path):
    drop = '{"id": "a", "decision": "drop"}'
    for text, name, options, said in (
        ('{"id": "a", "decision": "relabel"}', "ann.jsonl", [], "one of keep, drop, edit, unsure, got 'relabel'"),
        ('{"id": "a", "decision": null}\n{', "ann.jsonl", [], "line 2 of 'ann.jsonl' is no JSON"),
        ('{"id": "a", "decision": null}', "ann.jsonl", [], "every decision is empty"),
        ('{"id": "a", "decision": "edit", "completion": " "}', "ann.jsonl", [], "an edit needs the corrected text"),
        ('{"decision": "drop"}', "ann.jsonl", [], "no id"),
        ("x", "ann.txt", [], "must end in .jsonl or .csv"),
        (drop, "ann.jsonl", ["--drop-from", "90%"], "by decisions alone"),
    ):
        (tmp_path / name).write_text(text)
        assert said in read_refusal("apply", run, name, "--out", "manifest.parquet", *options)
    assert not (tmp_path / "manifest.parquet").exists()
    (tmp_path / "ann.csv").write_text("id,decision\nx,drop\na,drop\n")
    assert "the run has no such id, for example 'x'" in read_output("apply", run, "ann.csv", "--out", "m.parquet")


SAMPLED = 400


@pytest.fixture
def sampled(tmp_path, monkeypatch):
    """400 sequences whose texts are in a file; the 40 of the largest loss are wrong."""
    monkeypatch.chdir(tmp_path)
    ids = [f"s{place:03d}" for place in np.random.default_rng(0).permutation(SAMPLED)]
    texts = [{"id": id, "prompt": f"{place} + 1?", "completion": str(place + 1)} for place, id in enumerate(ids)]
    write_lines("train.jsonl", texts)
    run = write_sequence_run("run", ids, np.zeros((SAMPLED, 2)), np.linspace(4, 0.1, SAMPLED))
    return run, set(ids[:40])


def draw(run):
    """Write the page of a sample, and return what it knows."""
    assert answer("verify", run, "--show", "train.jsonl", "--page", "check.html")["cards"] == 60
    return document_of("check.html")


def check(run, wrong, how="drop"):
    """Draw a sample, and bring back verdicts."""
    write_verdicts("verdicts.jsonl", draw(run), wrong, how)
    return answer("verify", run, "--verdicts", "verdicts.jsonl")["all"]


def write_verdicts(path, document, wrong, how="drop"):
    """What the page downloads, were the cards in ``wrong`` called so."""
    about = {"list": document["list"], "reviewer": "", "decided_at": "2026-11-18T00:00:00Z", "completion": "new"}
    rows = [{"id": id, "decision": how if id in wrong else "keep", **about} for id in document["cards"]["id"]]
    write_lines(path, rows)


@pytest.mark.parametrize("how", ["drop", "edit"])
def test_a_checked_sample_gives_a_rate_and_probabilities_by_part_of_the_ranking(sampled, how, caplog):
    run, wrong = sampled
    before = sgoif.load(run).sequence_issues()
    assert before["p_mislabeled"].null_count == SAMPLED and "sgoif verify" in before["no_p_reason"][0].as_py()
    shown = draw(run)
    write_verdicts("verdicts.jsonl", shown, wrong, how)
    other = next(row["id"] for row in before.to_pylist() if row["id"] not in shown["cards"]["id"])
    with Path("verdicts.jsonl").open("a") as file:
        file.write(json.dumps({"id": other, "decision": "drop", "list": shown["list"]}) + "\n")
    found = answer("verify", run, "--verdicts", "verdicts.jsonl")
    assert "1 verdict not counted" in caplog.text
    assert sgoif.load(run).num_judged == SAMPLED
    assert found["all"]["low"] <= 0.1 <= found["all"]["high"] and found["all"]["num_checked"] == 60
    rows = sgoif.load(run).sequence_issues().to_pylist()
    assert all(row["p_mislabeled"] == 1.0 and row["no_p_reason"] is None for row in rows[:40])
    assert all(row["p_mislabeled_low"] <= row["p_mislabeled"] <= row["p_mislabeled_high"] for row in rows)
    rest = rows[40:]
    assert {row["p_mislabeled"] for row in rest} == {0.0} and all(row["p_mislabeled_high"] > 0.01 for row in rest)
    by_loss = {row["id"]: row for row in sgoif.load(run).sequence_issues(by="harm").to_pylist()}
    assert all(by_loss[row["id"]] == row for row in rows)  # a part is one of the default ranking, whatever is shown
    assert "checked sequences" in read_output("info", run).lower()
    shown = read_output("issues", run, "--top", 3)
    assert "checked sequences" in shown.lower() and "p (range)" in shown
    read_output("report", run, "--show", "train.jsonl", "--top", 3, "--out", "r.html")
    assert document_of("r.html")["cards"]["p"][0][0] == 1.0


def test_nobody_checks_sequences_without_a_token_to_predict(sampled):
    """Nothing of theirs can be wrong, and they have no place in the ranking."""
    _, wrong = sampled
    texts = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()]
    loss = np.linspace(4, 0.1, SAMPLED)
    loss[SAMPLED // 2 :] = np.nan
    run = write_sequence_run("empty", [text["id"] for text in texts], np.zeros((SAMPLED, 2)), loss)
    with_tokens = {text["id"] for text in texts[: SAMPLED // 2]}
    assert set(draw(run)["cards"]["id"]) <= with_tokens
    found = check(run, wrong)
    assert found["low"] <= 0.2 <= found["high"]  # 40 of 200
    assert sgoif.load(run).num_judged == SAMPLED // 2
    for row in sgoif.load(run).sequence_issues().to_pylist():
        is_known = row["id"] in with_tokens
        assert (row["p_mislabeled"] is not None) == is_known
        assert row["no_p_reason"] == (None if is_known else "it has no token to predict")


def test_the_page_of_a_sample_tells_nothing_but_texts(sampled):
    run, wrong = sampled
    document = draw(run)
    assert set(document["cards"]) == {"id", "given", "prompt", "completion", "left", "content"} and document["sample"]
    ranks = [id in wrong for id in document["cards"]["id"]]
    assert sum(ranks) > 10 and abs(np.corrcoef(np.arange(60), ranks)[0, 1]) < 0.35
    for arguments in ([], ["--page", "x.html"]):
        assert "a person has to read the sequences: pass --show FILE" in read_refusal("verify", run, *arguments)
    assert "--table goes with labels" in read_refusal("verify", run, "--table", "train.jsonl", "--page", "x.html")


def test_a_limit_is_judged_by_a_checked_sample_alone(sampled):
    run, wrong = sampled
    done = invoke("check", run, "--max-error-rate", "20%")
    assert done.exit_code == 2 and "nobody has checked sequences" in done.stdout and "--show" in done.stdout
    check(run, wrong)
    codes = {limit: invoke("check", run, "--max-error-rate", limit).exit_code for limit in ("30%", "10%", "1%")}
    assert codes == {"30%": 0, "10%": 2, "1%": 1}
    assert "sequences checked" in invoke("check", run, "--max-error-rate", "30%", "--summary", "s.md").stdout
    assert Path("s.md").read_text().startswith("## ✅ Sequences of")
    done = invoke("check", run, "--max-error-rate", "30%", "--max-class-error-rate", "5%")
    assert done.exit_code == 2 and "--max-class-error-rate goes with labels" in done.stdout


def test_the_terminal_asks_about_sequences_and_goes_on(sampled):
    run, _ = sampled
    arguments = ["verify", run, "--show", "train.jsonl"]
    done = CliRunner().invoke(app, arguments, input="r\nw\n?\nq\n")
    assert done.exit_code == 0 and "prompt: " in done.stdout and "completion: " in done.stdout, done.stdout
    assert "labelled" not in done.stdout and "which class" not in done.stdout
    done = CliRunner().invoke(app, arguments, input="r\n" * 57)
    assert done.exit_code == 0 and "4 of 60" in done.stdout and "1 of 60" not in done.stdout.split("4 of 60")[0]
    assert "Checked sequences: 60, 1 of them wrong, 1 could not be told." in done.stdout


def test_people_who_correct_a_completion_otherwise_agree_that_it_is_wrong(sampled):
    run, wrong = sampled
    document = draw(run)
    write_verdicts("ann.jsonl", document, wrong, "edit")
    write_verdicts("bob.jsonl", document, wrong, "drop")
    Path("cid.jsonl").write_text(Path("ann.jsonl").read_text().replace('"new"', '"newer"'))
    one = answer("verify", run, "--verdicts", "ann.jsonl")["all"]
    for other in ("bob.jsonl", "cid.jsonl"):
        assert answer("verify", run, "--verdicts", "ann.jsonl", "--verdicts", other)["all"] == one


def test_verdicts_about_labels_are_never_taken_for_those_about_sequences(sampled):
    run, _ = sampled
    before = "id,given_label,given_name,decision\nimg/1.png,0,cat,keep\n"
    Path("verdicts.csv").write_text(before)
    done = CliRunner().invoke(app, ["verify", run, "--show", "train.jsonl"], input="r\nq\n")
    assert done.exit_code == 0 and "sequence_verdicts.csv" in done.stdout
    assert "is about a label" in read_refusal("verify", run, "--show", "train.jsonl", "--out", "verdicts.csv")
    assert Path("verdicts.csv").read_text() == before


def test_a_checked_run_has_probabilities_until_it_changes(sampled):
    run, wrong = sampled
    assert not sgoif.load(run).is_calibrated
    check(run, wrong)
    assert sgoif.load(run).is_calibrated and sgoif.load(run).summary().is_calibrated
    invoke("check", run, "--max-error-rate", "30%", "--junit", "c.xml")
    assert "sequences of" in Path("c.xml").read_text()
    path = Path(run) / "checked.json"
    document = json.loads(path.read_text())

    def load_with(**changed):
        path.write_text(json.dumps({name: value for name, value in {**document, **changed}.items() if value}))
        return sgoif.load(run)

    opened = load_with(state={**document["state"], "rest": 1.0})
    assert not opened.is_calibrated
    reasons = (opened.sequence_issues()["no_p_reason"][0].as_py(), opened.info["no_p_reason"], read_output("info", run))
    assert all("the run has changed since" in reason for reason in reasons)
    first, *rest = document["parts"]
    foreign = load_with(parts=[{**first, "end": "0 then 1 else 2 end; --"}, *rest])  # a run may come from someone else
    assert "checked" not in foreign.info
