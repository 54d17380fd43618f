"""Findings in other tools' shapes, opened by the tools themselves where they are installed."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import sgoif
from sgoif.errors import SgoifError
from sgoif.export import (
    datalab_issues,
    fiftyone_samples,
    label_studio_config,
    label_studio_kind,
    label_studio_tasks,
    with_findings,
)
from sgoif.review.decisions import read_decisions
from tests.cli.runs import NAMES, held_out, invoke, noisy, write_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of 400 examples, of which the first 30 are flagged."""
    monkeypatch.chdir(tmp_path)
    return sgoif.load(write_run("run", noisy()))


@pytest.fixture
def photos(run, tmp_path):
    folder = tmp_path / "photos"
    for id in run.table["id"]:
        path = folder / str(id)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path, "PNG")
    return folder


def test_the_table_has_the_columns_of_a_datalab_and_its_meaning(run):
    cleanlab = pytest.importorskip("cleanlab")
    rng = np.random.default_rng(0)
    labels = np.arange(100) % 3
    p = rng.dirichlet(np.ones(3), 100) + 2 * np.eye(3)[labels]
    lab = cleanlab.Datalab({"y": labels}, label_name="y", verbosity=0)
    lab.find_issues(pred_probs=p / p.sum(1, keepdims=True), issue_types={"label": {}})
    theirs, ours = lab.get_issues("label"), datalab_issues(run).to_pandas().set_index(["id", "source"])
    assert set(theirs.columns) == set(ours.columns)
    assert ours["is_label_issue"].dtype == bool and ours["label_score"].between(0, 1).all()
    assert ours["label_score"][ours["is_label_issue"]].max() < ours["label_score"][~ours["is_label_issue"]].min()
    assert (ours["predicted_label"] != ours["given_label"])[ours["is_label_issue"]].all()
    assert set(ours["given_label"]) <= set(NAMES)


@pytest.mark.parametrize("kind", ["pictures", "texts"])
def test_label_studio_takes_the_tasks(run, photos, kind):
    shown = str(photos) if kind == "pictures" else lambda id: f"says {id}"
    tasks = list(label_studio_tasks(run, shown, top=20))
    config = label_studio_config(run.class_names, label_studio_kind(tasks))
    checker = pytest.importorskip("label_studio_sdk.label_interface").LabelInterface(config)
    assert all(checker.validate_prediction(task["predictions"][0]) for task in tasks)
    assert not checker.validate_prediction({**tasks[0]["predictions"][0], "result": [{"from_name": "nobody"}]})


def test_answers_of_label_studio_become_decisions_that_apply_takes(run, photos, tmp_path):
    tasks = list(label_studio_tasks(run, str(photos), top=5))
    chosen = lambda name, value: {"type": "choices", "from_name": name, "value": {"choices": [value]}}  # noqa: E731
    given = tasks[0]["data"]["given_name"]
    other = next(name for name in NAMES if name != tasks[1]["data"]["given_name"])
    said = [
        {"result": [chosen("label", given)], "completed_by": 7, "created_at": "2026-01-01T00:00:00Z"},
        {"result": [chosen("label", other)], "completed_by": {"id": 7, "email": "ann@example.org"}},
        {"result": [chosen("doubt", "drop it")], "completed_by": 7},
        {"result": [], "was_cancelled": True, "completed_by": 7},
        {"result": [], "completed_by": 7},
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps([{**task, "annotations": [item]} for task, item in zip(tasks, said)]))
    found = read_decisions(path, run.class_names, 4)
    assert [item.decision for item in found] == ["keep", "relabel", "drop", "unsure"]
    assert found[1].labels == (NAMES.index(other),) and found[1].reviewer == "label-studio-ann@example.org"
    done = invoke("apply", run.url, path, "--out", tmp_path / "manifest.csv")
    assert done.exit_code == 0, done.stderr
    assert "1 relabelled" in done.stdout and "1 dropped" in done.stdout


@pytest.mark.parametrize("text", ["{}", "[1]", "not json", '[{"data": {}, "annotations": [{}]}]'])
def test_what_is_no_export_of_our_tasks_is_refused(tmp_path, text):
    path = tmp_path / "export.json"
    path.write_text(text)
    with pytest.raises(SgoifError):
        read_decisions(path, NAMES, 4)


def test_fiftyone_gets_its_documented_fields(run, photos):
    class Sample(SimpleNamespace):
        """As `fiftyone.Sample(filepath, tags=None, **fields)` is documented."""

        def __init__(self, filepath, tags=None, **fields):
            super().__init__(filepath=filepath, tags=tags, **fields)

    classification = lambda label=None, confidence=None: SimpleNamespace(label=label, confidence=confidence)  # noqa: E731
    fiftyone = SimpleNamespace(Sample=Sample, Classification=classification)
    samples = list(fiftyone_samples(run, str(photos), fiftyone, top=40))
    assert len(samples) == 40 and all((photos / sample.sgoif_id).samefile(sample.filepath) for sample in samples)
    assert sum("label_issue" in sample.tags for sample in samples) == 30
    first = samples[0]
    assert first.suggested.confidence == first.p_mislabeled and first.ground_truth.label in NAMES
    with pytest.raises(SgoifError, match="files"):
        next(fiftyone_samples(run, lambda id: None, fiftyone))


def test_a_hugging_face_dataset_gets_columns_by_id(run):
    datasets = pytest.importorskip("datasets")
    ids = [str(id) for id in run.table["id"]][::-1]
    dataset = with_findings(run, datasets.Dataset.from_dict({"path": [*ids, "unknown"]}), ids="path")
    assert {"sgoif_p_mislabeled", "sgoif_suggested_label", "sgoif_harm"} <= set(dataset.column_names)
    np.testing.assert_allclose(dataset["sgoif_p_mislabeled"][:-1], run.table["p_mislabeled"][::-1])
    assert dataset[-1]["sgoif_p_mislabeled"] is None
    with pytest.raises(SgoifError, match="no id"):
        with_findings(run, datasets.Dataset.from_dict({"path": ["a", "b"]}), ids="path")


@pytest.fixture
def with_holdout(tmp_path, monkeypatch):
    """A run of 400 training examples and 60 that were held out: 15 of them are flagged, the last 10 are verified."""
    monkeypatch.chdir(tmp_path)
    held = held_out(60)
    held["trusted"] = np.arange(60) >= 50
    return sgoif.load(write_run("held", noisy(), holdout=held, trusted=False))


def test_every_export_has_the_held_out_examples_or_says_which_it_leaves_out(with_holdout, tmp_path):
    run = with_holdout
    table = datalab_issues(run).to_pandas()
    assert (table["source"] == "holdout").sum() == 50 and len(table) == 450
    flagged = table[(table["source"] == "holdout") & table["is_label_issue"]]
    assert len(flagged) == 13 and set(flagged["given_label"]) == {"cat"} and set(flagged["predicted_label"]) == {"dog"}
    assert list(table["id"]) == sorted(table["id"])
    done = invoke("export", run.url, "--to", "cleanlab", "--out", "issues.csv")
    assert "450 examples" in done.stdout and "400 of the training data, 50 held out" in done.stdout
    assert "10 verified labels left out" in done.stdout
    done = invoke("apply", run.url, "--relabel-from", "0.8", "--out", "manifest.csv")
    assert "10 verified labels left out" in done.stdout
    assert sum("held/" in line for line in (tmp_path / "manifest.csv").read_text().splitlines()) == 50
    assert invoke("export", run.url, "--to", "paper", "--out", "x.csv").exit_code == 2


def test_a_hugging_face_dataset_gets_the_findings_of_held_out_rows(with_holdout):
    datasets = pytest.importorskip("datasets")
    paths = datasets.Dataset.from_dict({"path": ["held/000.png", "held/055.png"]})
    dataset = with_findings(with_holdout, paths, ids="path")
    assert dataset["sgoif_p_mislabeled"][0] == 0.9 and dataset["sgoif_suggested_label"][0] == 1
    assert dataset["sgoif_p_mislabeled"][1] is None


@pytest.mark.parametrize("kind", ["text", "row"])
def test_texts_and_rows_go_to_label_studio_and_come_back(run, tmp_path, kind):
    ids = [str(id) for id in run.table["id"]]
    lines = []
    for i, id in enumerate(ids):
        shown = {"text": f"<b>says</b> {id}"} if kind == "text" else {"age": i, "job": "clerk" if i > 300 else None}
        lines.append({"id": id, **shown})
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    ask = ("export", run.url, "--to", "label-studio", "--out", "tasks.json", "--top", 4)
    done = invoke(*ask, "--images", "mine.jsonl")
    assert done.exit_code == 0, done.stderr
    tasks, config = json.loads((tmp_path / "tasks.json").read_text()), (tmp_path / "tasks.xml").read_text()
    first = tasks[0]["data"]
    number = ids.index(first["id"])
    assert first["text"] == (f"<b>says</b> {first['id']}" if kind == "text" else f"age: {number}\njob: (missing)")
    assert '<Text name="text" value="$text"/>' in config and "<Image" not in config
    assert config == label_studio_config(run.class_names, label_studio_kind(tasks))
    assert {result["to_name"] for task in tasks for result in task["predictions"][0]["result"]} == {"text"}
    chosen = {"type": "choices", "from_name": "doubt", "to_name": "text", "value": {"choices": ["drop it"]}}
    (tmp_path / "export.json").write_text(json.dumps([{**tasks[0], "annotations": [{"result": [chosen]}]}]))
    done = invoke("apply", run.url, "export.json", "--out", "manifest.csv")
    assert done.exit_code == 0 and "1 dropped" in done.stdout


def test_a_text_that_is_missing_is_no_task(run):
    with pytest.raises(SgoifError, match="no text or row in"):
        list(label_studio_tasks(run, lambda id: "says" if str(id) != str(run.table["id"][3]) else None, top=None))
