"""Scans of texts, tables, embeddings and queries: real data, wrong labels planted, what was assumed said."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits, load_wine

import sgoif
from sgoif.errors import SgoifError
from sgoif.review.verify import draw_list
from sgoif.scanning.rows import make_features
from sgoif.sources.labelled import open_source

pytestmark = pytest.mark.usefixtures("quick_heads")

NUM_WRONG = 10


def spoil(labels, seed=0):
    """Another class for ten labels."""
    found, names = list(labels), sorted(set(labels))
    wrong = np.random.default_rng(seed).permutation(len(found))[:NUM_WRONG]
    for i in wrong:
        found[i] = names[(names.index(found[i]) + 1) % len(names)]
    return found, {str(i) for i in wrong}


def found_among(run, wrong, top=15):
    return len(wrong & {str(id) for id in run.label_issues(top=top)["id"].to_pylist()})


def read_texts(data_root, num_intents=6):
    path = data_root / "text/clinc150/data_full.json"
    if not path.is_file():
        pytest.skip("CLINC150 is not there")
    whole = json.loads(path.read_text())["train"]
    chosen = sorted({intent for _, intent in whole})[:num_intents]
    return [(text, intent) for text, intent in whole if intent in chosen]


@pytest.mark.data
def test_texts_of_a_csv_are_judged_without_a_backbone(tmp_path, data_root):
    rows = read_texts(data_root)
    given, wrong = spoil([intent for _, intent in rows])
    with (tmp_path / "intents.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "intent"), *((text, label) for (text, _), label in zip(rows, given))])
    run = sgoif.scan(tmp_path / "intents.csv", out=str(tmp_path / "run"))
    assert found_among(run, wrong) >= 8
    assert run.info["path"] == "text" and run.info["examples_are"] == "text"
    assert any("sentence encoder" in note for note in run.info["notes"])
    kinds = {row["kind"]: row for row in run.data_issues().to_pylist()}
    assert kinds["label_errors"]["count"] >= 6
    assert kinds["dark_pictures"]["why_not"] == "the run has no pictures"


def test_a_table_is_judged_by_its_columns():
    frame = load_wine(as_frame=True).frame
    given, wrong = spoil(frame.pop("target").tolist())
    frame["grower"], frame["note"], frame["empty"] = "x", [f"bottle {i}" for i in range(len(frame))], None
    frame["colour"] = np.where(frame["hue"] > 1, "dark", "light")
    frame.loc[3, "ash"] = np.nan
    run = sgoif.scan(frame.assign(label=given))
    assert found_among(run, wrong) >= 8
    said = " ".join(run.info["notes"])
    assert "Columns of categories, one feature for each: colour." in said
    assert (
        "Left out, as they are the same in every row: grower" in said
        and "note" in said.partition("Left out, as texts")[2]
    )


def test_features_of_columns():
    times = np.array(["2026-01-01", "2026-01-03", "NaT"], dtype="datetime64[s]")
    table = {
        "label": ["a", "b", "a"],
        "number": [1.0, None, 3.0],
        "is_new": [True, False, True],
        "when": times,
        "kind": ["x", "y", "x"],
        "same": [7, 7, 7],
    }
    made = make_features(open_source(table))
    found = dict(zip(made.names, made.rows.T.tolist()))
    assert found["number"] == [1, 2, 3] and found["number is missing"] == [0, 1, 0]
    assert found["is_new"] == [1, 0, 1] and found["kind is x"] == [1, 0, 1] and found["kind is y"] == [0, 1, 0]
    assert found["when"][1] - found["when"][0] == pytest.approx(2 * 86_400, abs=200) and found["when is missing"] == [
        0,
        0,
        1,
    ]
    assert "same" not in found
    with pytest.raises(SgoifError, match="no column of the table can be learnt from"):
        make_features(open_source({"label": ["a", "b"], "same": [7, 7]}))


def test_embeddings_of_a_column_an_array_and_a_file_are_the_same(tmp_path):
    data, labels = load_digits(n_class=4, return_X_y=True)
    given, wrong = spoil(labels[:300].tolist())
    rows = np.tile(data[:300].astype(np.float32), 2)  # as wide as embeddings are
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    table = pa.table({"label": given, "vector": vectors})
    pq.write_table(table, tmp_path / "vectors.parquet", row_group_size=100)
    np.save(tmp_path / "rows.npy", rows)
    runs = [
        sgoif.scan(tmp_path / "vectors.parquet"),
        sgoif.scan(table.drop_columns(["vector"]), features=rows),
        sgoif.scan({"label": given}, features=tmp_path / "rows.npy"),
    ]
    assert found_among(runs[0], wrong) >= 9
    first = runs[0].label_issues()["p_mislabeled"].to_numpy()
    for run in runs[1:]:
        assert np.allclose(run.label_issues()["p_mislabeled"].to_numpy(), first, atol=1e-6)
    assert runs[0].info["feature_order"] == "by row of the table"
    assert runs[1].info["feature_order"].startswith("by position: row 0 is '0'")
    with pytest.raises(SgoifError, match="both named"):
        sgoif.scan(table, features=rows, backbone="timm:x")
    with pytest.raises(SgoifError, match="needs pictures or texts"):
        sgoif.scan({"label": given, "x": rows[:, 10]}, backbone="timm:x")
    short = table.set_column(1, "vector", pa.array([[1.0, 2.0]] * (len(given) - 1) + [[1.0]]))
    with pytest.raises(SgoifError, match="has 1 numbers, others have 2"):
        sgoif.scan(short)


def test_a_query_gives_the_table(tmp_path):
    frame = load_wine(as_frame=True).frame
    given, wrong = spoil(frame.pop("target").tolist())
    frame.assign(label=given, key=[f"w{i}" for i in range(len(frame))]).to_csv(tmp_path / "wine.csv", index=False)
    query = f"select * from '{tmp_path / 'wine.csv'}'"
    run = sgoif.scan(sql=query, id="key")
    assert found_among(run, {f"w{i}" for i in wrong}) >= 8
    with pytest.raises(SgoifError, match=r"name a column of ids with --id"):
        sgoif.scan(sql=f"select * exclude key from ({query})")
    for text in ("create table x as select 1", "select 1; select 2", f"copy (select 1) to '{tmp_path / 'out.csv'}'"):
        with pytest.raises(SgoifError, match="must be one SELECT"):
            sgoif.scan(sql=text, id="key")
    with pytest.raises(SgoifError, match="cannot be answered"):
        sgoif.scan(sql="select * from nowhere", id="key")
    assert not (tmp_path / "out.csv").exists()


def test_values_and_annotators_by_the_same_function():
    frame = load_wine(as_frame=True).frame
    wrong = [5, 50, 120]
    frame.loc[wrong, "alcohol"] *= 10
    run = sgoif.scan(frame, label="alcohol", task="regression")
    assert {int(id) for id in run.value_issues(top=3)["id"].to_pylist()} == set(wrong)
    frame = load_wine(as_frame=True).frame
    rng = np.random.default_rng(0)
    for name, share in (("ann", 0.05), ("bo", 0.05), ("cy", 0.5)):
        frame[name] = np.where(rng.random(len(frame)) < share, rng.integers(0, 3, len(frame)), frame["target"])
    run = sgoif.scan(frame.drop(columns="target"), label=["ann", "bo", "cy"])
    assert run.annotators()["annotator"].to_pylist()[-1] == "cy"
    with pytest.raises(SgoifError, match="task must be one of"):
        sgoif.scan(frame, label="ann", task="ranking")
    with pytest.raises(SgoifError, match="one column of labels"):
        sgoif.scan(frame, label=["ann", "bo"], task="regression")


def test_all_labels_of_a_scan_count(tmp_path):
    """Every figure of a scan, its page and its sample is about all labels."""
    rows, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(labels))[:300]
    rows, labels = rows[chosen].astype(np.float32), labels[chosen].copy()
    wrong = rng.permutation(300)[:6]
    labels[wrong] = (labels[wrong] + 3) % 10
    run = sgoif.scan({"label": labels, "id": np.arange(300)}, features=rows, out=str(tmp_path / "run"))
    flagged = run.label_issues(min_p=0.5).to_pylist()
    assert {row["source"] for row in flagged} == {"train"}
    summary, issue = run.summary(), run.data_issues().to_pylist()[0]
    assert summary.num_examples == summary.num_judged == run.num_examples == run.num_judged == 300
    assert summary.num_flagged == len(flagged) == issue["count"] >= 5
    assert summary.expected_errors == pytest.approx(300 * issue["share"]) == pytest.approx(run.info["expected_errors"])
    assert sum(run.class_issues()["num_examples"].to_pylist()) == 300
    drawn = draw_list(run.sql, run.info, run.url)
    assert drawn.design.num_examples == 300 and drawn.num_flagged == len(flagged)
