"""Scoring by a snapshot: the audit's rows from every form of data, whatever is broken, stopped or judged already."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import sgoif
from sgoif.errors import SgoifError
from sgoif.evidence import hash_ids
from sgoif.scoring.engines import LocalEngine
from sgoif.scoring.operator import Loading
from sgoif.scoring.score import score
from sgoif.snapshot import read_snapshot, write_snapshot
from sgoif.training.recorder import MEAN_SIGNALS
from tests.cli.runs import table as some_examples
from tests.cli.runs import write_run
from tests.scoring.pictures import NAMES, as_folder, as_parquet, as_shards, train_and_audit

# float32 sums over other batches than the audit's
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_and_audit(tmp_path_factory.mktemp("trained"))


def rows_by(run, number_of=int):
    """The rows of a run in the order of the pictures."""
    order = np.argsort([number_of(id) for id in run.table["id"]])
    return {name: column[order] for name, column in run.table.items()}


def scored(trained, data, out, **settings):
    return score(trained.snapshot, trained.model, data, str(out), **settings)


@pytest.mark.parametrize(
    "form, number_of",
    [(as_parquet, int), (as_shards, lambda id: int(id[-5:])), (as_folder, lambda id: int(id[-9:-4]))],
)
def test_the_same_pictures_in_any_form_are_judged_as_the_audit_judged_them(trained, tmp_path, form, number_of):
    run = scored(trained, form(trained.train, tmp_path / "data"), tmp_path / "run", batch_size=64)
    found, expected = rows_by(run, number_of), rows_by(trained.audit)
    for name in MEAN_SIGNALS:
        np.testing.assert_allclose(found[name], expected[name], **CLOSE, err_msg=name)
    for name in ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high"):
        # the sample is all of the data here, so that the probabilities are adapted to what the audit saw; in another
        # order, though, in which others of the examples that are equally sure are counted
        np.testing.assert_allclose(found[name], expected[name], atol=0.1, err_msg=name)
        assert np.abs(found[name] - expected[name]).mean() < 0.01
    assert (found["suggested_label"] == expected["suggested_label"]).mean() > 0.95
    np.testing.assert_array_equal(found["given_label"], trained.train.given)
    worst = np.argsort(-found["p_mislabeled"])[: trained.train.wrong.sum()]
    assert trained.train.wrong[worst].mean() > 0.7
    assert run.info["num_examples"] == 300 and run.info["state"] == "finished"


@pytest.fixture(scope="module")
def plain(trained, tmp_path_factory):
    """Five files of data, and the run of all that is in them."""
    folder = tmp_path_factory.mktemp("plain")
    data = as_parquet(trained.train, folder / "data", files=5)
    return data, scored(trained, data, folder / "run")


def test_the_run_is_like_any_other(plain):
    _, run = plain
    assert run.class_names == list(NAMES)
    assert run.label_issues(top=5).num_rows == 5
    assert run.class_issues().num_rows == 3
    assert run.sql("select count(*) as n from examples")["n"][0].as_py() == 300


def test_decoding_ahead_changes_nothing_and_settings_of_loading_are_taken_one_by_one_too(trained, plain, tmp_path):
    ahead = rows_by(scored(trained, plain[0], tmp_path / "ahead", batch_size=50, decoders=2))
    alone = rows_by(scored(trained, plain[0], tmp_path / "alone", loading=Loading(batch_size=50, decoders=0)))
    assert all(np.array_equal(ahead[name], alone[name]) for name in ("id", "harm", "margin", "p_mislabeled"))
    with pytest.raises(TypeError, match="batches"):
        scored(trained, plain[0], tmp_path / "run", batches=64)
    assert not (tmp_path / "run").exists()


def test_what_is_broken_is_put_aside_with_its_reason(trained, tmp_path):
    data = tmp_path / "data"
    as_parquet(trained.train, data, broken={5, 150})
    table = pq.read_table(data / "part-2.parquet")
    table = table.set_column(1, "label", [[7, None, *table["label"].to_pylist()[2:]]])
    pq.write_table(table, data / "part-2.parquet")
    (data / "part-9.parquet").write_bytes(b"PAR1 but not for long")
    run = scored(trained, str(data), tmp_path / "run")
    aside = pq.read_table(tmp_path / "run" / "quarantine").to_pylist()
    reasons = {row["id"]: row["error"] for row in aside}
    assert len(run.table["id"]) == 296 and run.info["num_quarantined"] == len(aside) == 5
    assert "UnidentifiedImageError" in reasons["5"] and "UnidentifiedImageError" in reasons["150"]
    assert "'7' is none of the classes" in reasons["200"] and reasons["201"] == "it has no label"
    assert "cannot be read on" in reasons[str(data / "part-9.parquet")]


def test_a_record_that_the_model_chokes_on_takes_no_other_with_it(trained, plain, tmp_path):
    def transform(picture):
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div(255)
        return pixels[:, :2, :2] if (np.array(picture) == trained.train.pixels[17]).all() else pixels

    run = scored(trained, plain[0], tmp_path / "run", transform=transform)
    assert sorted(set(range(300)) - set(run.table["id"].tolist())) == [17]
    expected = np.delete(rows_by(trained.audit)["harm"], 17)
    np.testing.assert_allclose(rows_by(run)["harm"], expected, **CLOSE)


def test_a_record_whose_output_is_not_finite_is_put_aside_with_its_signals(trained, tmp_path):
    def transform(picture):
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float().div(255)
        return pixels * (np.nan if (np.array(picture) == trained.train.pixels[17]).all() else 1.0)

    run = scored(trained, as_parquet(trained.train, tmp_path / "data"), tmp_path / "run", transform=transform)
    (aside,) = pq.read_table(tmp_path / "run" / "quarantine").to_pylist()
    assert aside["id"] == "17" and "not finite" in aside["error"]
    np.testing.assert_allclose(rows_by(run)["harm"], np.delete(rows_by(trained.audit)["harm"], 17), **CLOSE)


class Stopping(LocalEngine):
    """Dies after a number of pieces, and counts those that it scored."""

    def __init__(self, after):
        self.after, self.done = after, 0

    def run(self, job, pieces):
        for item in super().run(job, pieces):
            self.done += 1
            yield item
            if self.done == self.after:
                raise KeyboardInterrupt


def test_a_stopped_run_goes_on_with_what_is_left(trained, plain, tmp_path):
    data, whole = plain
    with pytest.raises(KeyboardInterrupt):
        scored(trained, data, tmp_path / "run", engine=Stopping(2))
    assert sgoif.load(tmp_path / "run").info["state"] == "running"
    (tmp_path / "run" / "examples" / "rank-00000" / ".edition-0001-part-000003.parquet.tmp").write_bytes(b"half")
    rest = Stopping(99)
    run = scored(trained, data, tmp_path / "run", engine=rest)
    assert rest.done == 3 and run.info["state"] == "finished"
    for name, column in rows_by(whole).items():
        np.testing.assert_array_equal(rows_by(run)[name], column, err_msg=name)


def test_a_folder_that_was_begun_with_something_else_is_left_alone(trained, plain, tmp_path):
    data, run = plain
    with pytest.raises(SgoifError, match="begun with other data"):
        scored(trained, as_shards(trained.train, tmp_path / "tar"), run.url)
    write_run(tmp_path / "other", some_examples([0.5], [0], [1]))
    with pytest.raises(SgoifError, match="holds a run already"):
        scored(trained, data, tmp_path / "other")


def test_other_weights_are_refused_before_anything_is_written(trained, plain, tmp_path):
    other = type(trained.model)()
    with pytest.raises(SgoifError, match="not those of the snapshot"):
        score(trained.snapshot, other, plain[0], str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_only_what_a_run_has_not_judged_is_scored(trained, plain, tmp_path):
    judged = np.arange(100, 300)
    examples = some_examples(np.full(250, 0.25), np.zeros(250), np.ones(250), ids=np.arange(50, 300))
    examples["confidence"] = np.isin(examples["id"], judged).astype(float)  # 50..99 met a shut gate, 0..49 were not met
    before = write_run(tmp_path / "before", examples, names=NAMES)
    run = scored(trained, plain[0], tmp_path / "run", only_unjudged=before)
    found = rows_by(run)
    assert found["id"].tolist() == list(range(300)) and run.info["num_scored"] == 100 and run.info["num_copied"] == 200
    assert (found["p_mislabeled"][judged] == 0.25).all()
    np.testing.assert_allclose(found["harm"][:100], rows_by(trained.audit)["harm"][:100], **CLOSE)
    assert sgoif.load(before).table["confidence"].sum() == 200  # the run itself is as it was


def test_ids_of_another_kind_are_refused(trained, plain, tmp_path):
    before = write_run(tmp_path / "before", some_examples([0.5], [0], [1]))
    with pytest.raises(SgoifError, match="ids are of type int"):
        scored(trained, plain[0], tmp_path / "run", only_unjudged=before)


def test_hold_out_examples_are_not_judged_by_themselves(trained, plain, tmp_path):
    held = np.sort(hash_ids(np.array([3, 4])).view(np.int64))
    path = tmp_path / "held.safetensors"
    write_snapshot(replace(read_snapshot(trained.snapshot), held_out=held), path)
    run = score(str(path), trained.model, plain[0], str(tmp_path / "run"))
    assert not {3, 4} & set(run.table["id"].tolist()) and run.info["num_passed_over"] == 2
    before = write_run(
        tmp_path / "before", some_examples([0.2] * 9, [0] * 9, [1] * 9, ids=np.arange(5, 14)), names=NAMES
    )
    data, out = as_parquet(trained.train, tmp_path / "again"), str(tmp_path / "rest")
    rest = score(str(path), trained.model, data, out, only_unjudged=before)
    assert rest.info["num_passed_over"] == 11 and rest.info["num_scored"] == 289
