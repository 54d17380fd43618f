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
from tests.cli.runs import answer, invoke, noisy, write_run
from tests.sequence_runs import write_sequence_run

IDS = ["a", "b\x1b[2J", "never judged", "d"]
HARM = np.array([[0.5, -0.1], [0.1, 0.9], [np.nan, np.nan], [-0.3, -0.2]])  # by group: math, code
LOSS = np.array([2.0, 1.0, 3.0, 0.5])


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_sequence_run("run", IDS, HARM, LOSS)


def test_sequences_are_ranked_by_loss_and_harm_or_by_another_column(run):
    document = answer("issues", run)
    assert [row["id"] for row in document["issues"]] == [IDS[2], IDS[0], IDS[1], IDS[3]]
    assert document["issues"][0]["harm"] is None and document["issues"][0]["worst_group"] is None
    assert document["summary"]["num_judged"] == 3 and document["summary"]["groups"]["math"]["num_sequences"] == 5
    assert [row["id"] for row in answer("issues", run, "--rank-by", "harm", "--top", 2)["issues"]] == [IDS[1], IDS[0]]
    assert "ranked by one of suspicion" in invoke("issues", run, "--rank-by", "score").stderr


def test_the_table_shows_harm_group_and_loss(run):
    done = invoke("issues", run)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    header = next(place for place, line in enumerate(lines) if "worst group" in line)
    shown = [line.split() for line in lines[header + 1 :] if line.strip() and not set(line) & set("─━")]
    assert shown[0][-7:] == ["3", "3", "?", "?", "?", "3", "1"]
    assert shown[1] == ["2", "a", "2.051", "2", "2", "0.2", "math", "0.5", "7", "3"]
    assert shown[2][-7:] == ["1", "1", "0.5", "code", "0.9", "1,200", "3"]
    assert "\x1b" not in done.stdout and "No probabilities: " in done.stdout


def test_texts_stand_beside_the_sequences(run, tmp_path):
    texts = [{"id": id, "text": f"text of {place}", "label": "x"} for place, id in enumerate(IDS)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(item) + "\n" for item in texts))
    assert "text of 2" in invoke("issues", run, "--show", "texts.jsonl").stdout
    rows = answer("issues", run, "--show", "texts.jsonl", "--top", 1)["issues"]
    assert rows[0]["example"] == "text of 2"


def test_what_does_not_go_with_sequences_is_refused(run, tmp_path):
    assert "this run judged sequences" in invoke("issues", run, "--class", "cat").stderr
    assert "--min-p goes with labels" in invoke("issues", run, "--min-p", 0.5).stderr
    assert "an audit of the finished model does" in invoke("duplicates", run).stderr
    for arguments in (["classes", run], ["export", run, "--to", "cleanlab", "--out", "x.csv"]):
        done = invoke(*arguments)
        assert done.exit_code == 2 and "`issues`" in done.stderr, arguments
    labels = write_run(tmp_path / "labels", noisy())
    assert "this run judged labels" in invoke("issues", labels, "--rank-by", "loss").stderr
    done = invoke("export", labels, "--to", "cleanlab", "--out", "x.csv", "--rank-by", "harm")
    assert done.exit_code == 2 and "not with --to cleanlab" in done.stderr
    done = invoke("export", labels, "--to", "jsonl", "--out", "x.jsonl")
    assert done.exit_code == 2 and "sequences of a language model" in done.stderr
    assert not (tmp_path / "x.jsonl").exists()


def test_info_tells_of_groups_and_of_no_hold_out(run):
    done = invoke("info", run)
    assert done.exit_code == 0, done.stderr
    assert "group math" in done.stdout and "5 evaluation sequences" in done.stdout
    assert "hold-out" not in done.stdout and "only-unjudged" not in done.stdout


def test_a_page_is_written_with_texts_or_says_how_to_give_them(run, tmp_path):
    done = invoke("report", run)
    assert done.exit_code == 0 and "--show FILE" in done.stdout and "decisions.jsonl --out" in done.stdout, done.stderr
    assert "--show train.jsonl" in (tmp_path / "report.html").read_text()
    rows = [{"id": id, "prompt": "p", "completion": "c"} for id in IDS]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = invoke("report", run, "--show", "texts.jsonl", "--rank-by", "harm", "--top", 2, "--out", "r.html")
    assert done.exit_code == 0 and "ids and numbers only" not in done.stdout, done.stderr
    assert answer("report", run, "--images", "texts.jsonl")["images"] == "texts.jsonl"


def test_options_of_the_page_that_do_not_go_with_the_run_are_refused(run, tmp_path):
    for option in (["--reviewers", "Ann,Bo"], ["--blind"], ["--pictures", "none"]):
        assert f"{option[0]} goes with labels" in invoke("report", run, *option).stderr
    assert "ranked by one of suspicion" in invoke("report", run, "--rank-by", "score").stderr
    labels = write_run(tmp_path / "labels", noisy())
    for option in (["--rank-by", "harm"], ["--tokens", "x.jsonl"]):
        assert f"{option[0]} goes with sequences" in invoke("report", labels, *option).stderr
    with pytest.raises(SgoifError, match="has no option 'blind'; it has images, top, ids, by, tokens"):
        sgoif.load(run).report("x.html", blind=True)


def test_findings_are_written_as_jsonl_with_a_decision_to_fill_in(run, tmp_path):
    done = invoke("export", run, "--to", "jsonl", "--out", "out/x.jsonl")
    assert done.exit_code == 0 and "4 of 4 sequences written" in done.stdout, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out/x.jsonl").read_text().splitlines()]
    table = sgoif.load(run).sequence_issues().to_pylist()
    extra = ("harm_by_group", "decision")
    assert [{name: value for name, value in row.items() if name not in extra} for row in rows] == table
    assert rows[2]["harm_by_group"] == {"math": 0.1, "code": 0.9} and rows[0]["harm_by_group"] is None
    assert all(row["decision"] is None for row in rows)
    done = invoke("export", run, "--to", "jsonl", "--out", "x.jsonl", "--top", 1)
    assert "1 of 4 sequences written" in done.stdout and "--top 0 writes all" in done.stdout
    done = invoke("export", run, "--to", "jsonl", "--out", "x.jsonl", "--rank-by", "harm")
    assert "4 of 4 sequences written to x.jsonl, ranked by harm." in done.stdout
    written = [json.loads(line)["id"] for line in Path("x.jsonl").read_text().splitlines()]
    assert written == sgoif.load(run).sequence_issues(by="harm")["id"].to_pylist() and written[0] == IDS[1]


def fill_in(path, decisions, **columns):
    """Fill in the decisions of an exported file, by id."""
    rows = [json.loads(line) for line in Path("x.jsonl").read_text().splitlines()]
    filled = [{**row, **columns, "decision": decisions.get(row["id"])} for row in rows]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in filled))


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_decisions_come_back_as_a_manifest_to_train_on(run, end):
    assert invoke("export", run, "--to", "jsonl", "--out", "x.jsonl").exit_code == 0
    fill_in("ann.jsonl", {"a": "drop", "d": "Keep", "b\x1b[2J": "drop"})
    fill_in("bo.jsonl", {"a": "drop", "d": "unsure", "b\x1b[2J": "keep"}, reviewer="Bo")
    out = f"manifest.{end}"
    done = invoke("apply", run, "ann.jsonl", "bo.jsonl", "--out", out)
    assert done.exit_code == 0, done.stderr
    assert "6 decisions read: ann 3, Bo 3." in done.stdout and "1 dropped" in done.stdout
    assert "People disagree about 2 sequences" in done.stdout
    document = answer("apply", run, "ann.jsonl", "--out", out)
    assert document["counts"] == {"keep": 1, "drop": 2, "edit": 0, "unsure": 0, "unreviewed": 1}
    items = [{"input_ids": [place], "labels": [place]} for place in range(4)]
    kept = sgoif.cleaned(sgoif.with_ids(items, IDS), out)
    assert [kept[i]["id"] for i in range(len(kept))] == ["never judged", "d"] == list(kept.ids)
    assert kept[1]["input_ids"] == [3]


def test_tables_of_texts_are_cleaned_by_id(run):
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    for decided, left in (({"a": "drop"}, IDS[1:]), ({"a": "keep"}, IDS)):
        assert invoke("export", run, "--to", "jsonl", "--out", "x.jsonl").exit_code == 0
        fill_in("ann.jsonl", decided)
        assert invoke("apply", run, "ann.jsonl", "--out", "manifest.parquet").exit_code == 0
        columns = {"id": IDS, "prompt": list("pqrs"), "completion": list("tuvw")}
        found = sgoif.cleaned(datasets.Dataset.from_dict(columns), "manifest.parquet")
        assert found["id"] == left and found.column_names == list(columns)
        assert sgoif.cleaned(pandas.DataFrame(columns), "manifest.parquet")["id"].tolist() == left


CORRECTED = "=2;\n'new', text"  # what a spreadsheet would run, over two lines


def apply_edit(run, out="manifest.parquet", **columns):
    """Correct one completion, drop another sequence, and write the manifest."""
    rows = [{"id": "a", "decision": "drop"}, {"id": "d", "decision": "edit", "completion": CORRECTED, **columns}]
    Path("edits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = invoke("apply", run, "edits.jsonl", "--out", out)
    assert done.exit_code == 0 and "1 with a corrected completion" in done.stdout, done.stderr
    return out


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
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    manifest = apply_edit(run)
    columns = {"id": IDS, "completion": list("tuvw"), "prompt": list("pqrs")}
    found = sgoif.cleaned(datasets.Dataset.from_dict(columns), manifest)
    assert found["completion"] == ["u", "v", CORRECTED] and found.column_names == list(columns)
    assert sgoif.cleaned(pandas.DataFrame(columns), manifest)["completion"].tolist() == ["u", "v", CORRECTED]
    with pytest.raises(SgoifError, match=r"tokenised already.*Sequences: 'd'"):
        sgoif.cleaned(pandas.DataFrame({**columns, "input_ids": [1] * 4}), manifest)


def test_a_correction_that_cannot_be_applied_is_named(run):
    manifest = apply_edit(run, content=written_hash("w"))
    tokens = [{"input_ids": [place], "labels": [place], "text": "w"} for place in range(4)]
    with pytest.raises(SgoifError, match=r"tokenised already.*Sequences: 'd'"):
        sgoif.cleaned(sgoif.with_ids(tokens, IDS), manifest)
    for given, is_fine in (("w", True), (CORRECTED, True), ("other", False)):
        texts = sgoif.with_ids([{"completion": given}] * 4, IDS)
        if is_fine:
            assert sgoif.cleaned(texts, manifest)[2]["completion"] == CORRECTED
        else:
            with pytest.raises(SgoifError, match="completion of 'd' in this dataset is not the one"):
                sgoif.cleaned(texts, manifest)


def test_a_sequence_that_goes_is_the_one_that_was_reviewed(run):
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    row = {"id": "a", "decision": "drop", "content": written_hash("t")}
    Path("drops.jsonl").write_text(json.dumps(row))
    assert invoke("apply", run, "drops.jsonl", "--out", "m.parquet").exit_code == 0

    def kinds(completions):
        columns = {"id": IDS, "completion": completions}
        items = [{"id": id, "completion": text} for id, text in zip(IDS, completions)]
        yield lambda: sgoif.cleaned(datasets.Dataset.from_dict(columns), "m.parquet")["id"]
        yield lambda: sgoif.cleaned(pandas.DataFrame(columns), "m.parquet")["id"].tolist()
        yield lambda: [item["id"] for item in sgoif.cleaned(items, "m.parquet")]
        samples = [{"__key__": item["id"], "text": item["completion"]} for item in items]
        yield lambda: [sample["__key__"] for sample in sgoif.cleaned(iter(samples), "m.parquet")]

    assert all(clean() == IDS[1:] for clean in kinds(list("tuvw")))
    for clean in kinds(list("uvwt")):
        with pytest.raises(SgoifError, match="completion of 'a' in this dataset is not the one that was reviewed"):
            clean()
    tokens = [{"id": id, "input_ids": [1], "labels": [1]} for id in IDS]  # have no text to compare
    assert [item["id"] for item in sgoif.cleaned(tokens, "m.parquet")] == IDS[1:]


def test_items_with_numbers_for_ids_are_cleaned_by_these_and_not_by_position(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sequence_run("run", [0, 1, 2, 3], HARM, LOSS)
    Path("drops.jsonl").write_text(json.dumps({"id": 3, "decision": "drop"}))
    assert invoke("apply", "run", "drops.jsonl", "--out", "m.parquet").exit_code == 0
    items = [{"id": id, "input_ids": [id], "labels": [id]} for id in (3, 2, 1, 0)]
    assert [item["id"] for item in sgoif.cleaned(items, "m.parquet")] == [2, 1, 0]
    with pytest.raises(SgoifError, match="has an id of its own, 3, which the position would replace"):
        sgoif.with_ids(items)[0]
    assert [item["id"] for item in sgoif.with_ids(items, list("abcd"))] == list("abcd")


def test_a_watched_training_has_no_conflict_to_rank_by(run):
    done = invoke("issues", run, "--rank-by", "conflict")
    assert done.exit_code == 2 and "a watched training does not find it" in done.stderr


def test_people_who_correct_a_completion_otherwise_disagree(run):
    for name, text in (("ann", "x"), ("bo", "y")):
        Path(f"{name}.jsonl").write_text(json.dumps({"id": "a", "decision": "edit", "completion": text}))
    assert answer("apply", run, "ann.jsonl", "bo.jsonl", "--out", "m.csv")["disagreements"] == ["a"]
    Path("bo.jsonl").write_text(Path("ann.jsonl").read_text())
    assert answer("apply", run, "ann.jsonl", "bo.jsonl", "--out", "m.csv")["counts"]["edit"] == 1


def test_files_of_one_name_are_taken_for_one_person_and_that_is_said(run):
    for folder in ("ann", "bo"):
        Path(folder).mkdir()
        Path(folder, "decisions.jsonl").write_text('{"id": "a", "decision": "drop"}')
    done = invoke("apply", run, "ann/decisions.jsonl", "bo/decisions.jsonl", "--out", "m.csv")
    assert done.exit_code == 0 and "2 files are called decisions" in " ".join(done.stdout.split())


def test_decisions_that_cannot_be_applied_are_named(run, tmp_path):
    def refused(text, name="ann.jsonl", options=()):
        (tmp_path / name).write_text(text)
        done = invoke("apply", run, name, "--out", "manifest.parquet", *options)
        assert done.exit_code == 2 and not (tmp_path / "manifest.parquet").exists()
        return done.stderr

    assert "one of keep, drop, edit, unsure, got 'relabel'" in refused('{"id": "a", "decision": "relabel"}')
    assert "line 2 of 'ann.jsonl' is no JSON" in refused('{"id": "a", "decision": null}\n{')
    assert "every decision is empty" in refused('{"id": "a", "decision": null}')
    assert "an edit needs the corrected text" in refused('{"id": "a", "decision": "edit", "completion": " "}')
    assert "no id" in refused('{"decision": "drop"}')
    assert "must end in .jsonl or .csv" in refused("x", "ann.txt")
    assert "by decisions alone" in refused('{"id": "a", "decision": "drop"}', options=["--drop-from", "90%"])
    (tmp_path / "ann.csv").write_text("id,decision\nx,drop\na,drop\n")
    done = invoke("apply", run, "ann.csv", "--out", "manifest.parquet")
    assert done.exit_code == 0 and "the run has no such id, for example 'x'" in done.stdout


SAMPLED = 400


@pytest.fixture
def sampled(tmp_path, monkeypatch):
    """400 sequences whose texts are in a file; the 40 of the largest loss are wrong."""
    monkeypatch.chdir(tmp_path)
    ids = [f"s{place:03d}" for place in np.random.default_rng(0).permutation(SAMPLED)]
    texts = [{"id": id, "prompt": f"{place} + 1?", "completion": str(place + 1)} for place, id in enumerate(ids)]
    Path("train.jsonl").write_text("".join(json.dumps(item) + "\n" for item in texts))
    run = write_sequence_run("run", ids, np.zeros((SAMPLED, 2)), np.linspace(4, 0.1, SAMPLED))
    return run, set(ids[:40])


def document_of(page):
    return json.loads(Path(page).read_text().split('id="document">')[1].split("</script>")[0])


def write_verdicts(path, document, wrong, how="drop"):
    """What the page downloads, were the cards in ``wrong`` called so."""
    about = {"list": document["list"], "reviewer": "", "decided_at": "2026-11-18T00:00:00Z", "completion": "new"}
    rows = [{"id": id, "decision": how if id in wrong else "keep", **about} for id in document["cards"]["id"]]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("how", ["drop", "edit"])
def test_a_checked_sample_gives_a_rate_and_probabilities_by_part_of_the_ranking(sampled, how, caplog):
    run, wrong = sampled
    before = sgoif.load(run).sequence_issues()
    assert before["p_mislabeled"].null_count == SAMPLED and "sgoif verify" in before["no_p_reason"][0].as_py()
    assert answer("verify", run, "--show", "train.jsonl", "--page", "check.html")["cards"] == 60
    write_verdicts("verdicts.jsonl", document_of("check.html"), wrong, how)
    shown = document_of("check.html")
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
    for command in ("info", "issues"):
        assert "checked sequences" in invoke(command, run).stdout.lower()
    assert "p (range)" in invoke("issues", run, "--top", 3).stdout
    assert invoke("report", run, "--show", "train.jsonl", "--top", 3, "--out", "r.html").exit_code == 0
    assert document_of("r.html")["cards"]["p"][0][0] == 1.0


def test_nobody_checks_sequences_without_a_token_to_predict(sampled):
    """Nothing of theirs can be wrong, and they have no place in the ranking."""
    _, wrong = sampled
    texts = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()]
    loss = np.linspace(4, 0.1, SAMPLED)
    loss[SAMPLED // 2 :] = np.nan
    run = write_sequence_run("empty", [text["id"] for text in texts], np.zeros((SAMPLED, 2)), loss)
    answer("verify", run, "--show", "train.jsonl", "--page", "check.html")
    document = document_of("check.html")
    with_tokens = {text["id"] for text in texts[: SAMPLED // 2]}
    assert set(document["cards"]["id"]) <= with_tokens
    write_verdicts("verdicts.jsonl", document, wrong)
    found = answer("verify", run, "--verdicts", "verdicts.jsonl")["all"]
    assert found["low"] <= 0.2 <= found["high"]  # 40 of 200
    assert sgoif.load(run).num_judged == SAMPLED // 2
    for row in sgoif.load(run).sequence_issues().to_pylist():
        is_known = row["id"] in with_tokens
        assert (row["p_mislabeled"] is not None) == is_known
        assert row["no_p_reason"] == (None if is_known else "it has no token to predict")


def test_the_page_of_a_sample_tells_nothing_but_texts(sampled):
    run, wrong = sampled
    answer("verify", run, "--show", "train.jsonl", "--page", "check.html")
    document = document_of("check.html")
    assert set(document["cards"]) == {"id", "given", "prompt", "completion", "left", "content"} and document["sample"]
    ranks = [id in wrong for id in document["cards"]["id"]]
    assert sum(ranks) > 10 and abs(np.corrcoef(np.arange(60), ranks)[0, 1]) < 0.35
    done = invoke("verify", run, "--page", "x.html")
    assert done.exit_code == 2 and "a person has to read the sequences: pass --show FILE" in done.stderr
    assert "--table goes with labels" in invoke("verify", run, "--table", "train.jsonl", "--page", "x.html").stderr


def test_a_limit_is_judged_by_a_checked_sample_alone(sampled):
    run, wrong = sampled
    done = invoke("check", run, "--max-error-rate", "20%")
    assert done.exit_code == 2 and "nobody has checked sequences" in done.stdout and "--show" in done.stdout
    answer("verify", run, "--show", "train.jsonl", "--page", "check.html")
    write_verdicts("verdicts.jsonl", document_of("check.html"), wrong)
    assert invoke("verify", run, "--verdicts", "verdicts.jsonl").exit_code == 0
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
    answer("verify", run, "--show", "train.jsonl", "--page", "check.html")
    document = document_of("check.html")
    write_verdicts("ann.jsonl", document, wrong, "edit")
    write_verdicts("bob.jsonl", document, wrong, "drop")
    Path("cid.jsonl").write_text(Path("ann.jsonl").read_text().replace('"new"', '"newer"'))
    one = answer("verify", run, "--verdicts", "ann.jsonl")["all"]
    for other in ("bob.jsonl", "cid.jsonl"):
        assert answer("verify", run, "--verdicts", "ann.jsonl", "--verdicts", other)["all"] == one


def test_verdicts_about_labels_are_never_taken_for_those_about_sequences(sampled):
    run, _ = sampled
    Path("verdicts.csv").write_text("id,given_label,given_name,decision\nimg/1.png,0,cat,keep\n")
    before = Path("verdicts.csv").read_text()
    done = CliRunner().invoke(app, ["verify", run, "--show", "train.jsonl"], input="r\nq\n")
    assert done.exit_code == 0 and "sequence_verdicts.csv" in done.stdout
    assert Path("verdicts.csv").read_text() == before
    done = invoke("verify", run, "--show", "train.jsonl", "--out", "verdicts.csv")
    assert done.exit_code == 2 and "is about a label" in done.stderr and Path("verdicts.csv").read_text() == before
    done = invoke("verify", run)
    assert done.exit_code == 2 and "a person has to read the sequences: pass --show FILE" in done.stderr


def test_a_checked_run_has_probabilities_until_it_changes(sampled):
    run, wrong = sampled
    assert not sgoif.load(run).is_calibrated
    answer("verify", run, "--show", "train.jsonl", "--page", "check.html")
    write_verdicts("verdicts.jsonl", document_of("check.html"), wrong)
    answer("verify", run, "--verdicts", "verdicts.jsonl")
    assert sgoif.load(run).is_calibrated and sgoif.load(run).summary().is_calibrated
    invoke("check", run, "--max-error-rate", "30%", "--junit", "c.xml")
    assert "sequences of" in Path("c.xml").read_text()
    path = Path(run) / "checked.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "state": {**document["state"], "rest": 1.0}}))
    opened = sgoif.load(run)
    assert not opened.is_calibrated
    for said in (opened.sequence_issues()["no_p_reason"][0].as_py(), opened.info["no_p_reason"]):
        assert "the run has changed since" in said
    assert "the run has changed since" in invoke("info", run).stdout


def test_figures_of_an_older_version_give_a_rate_and_no_probabilities(sampled):
    run, wrong = sampled
    answer("verify", run, "--show", "train.jsonl", "--page", "check.html")
    write_verdicts("verdicts.jsonl", document_of("check.html"), wrong)
    answer("verify", run, "--verdicts", "verdicts.jsonl")
    path = Path(run) / "checked.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in document.items() if name != "parts"}))
    opened = sgoif.load(run)
    assert "checked" in opened.info and opened.sequence_issues()["p_mislabeled"].null_count == SAMPLED
    document["parts"][0]["end"] = "0 then 1 else 2 end; --"
    path.write_text(json.dumps(document))
    assert "checked" not in sgoif.load(run).info  # a run may come from someone else
