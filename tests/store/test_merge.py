"""Evidence merged from the disk equals the evidence that the run had in memory, however it is cut."""

import numpy as np
import pytest
import torch

from sgoif.evidence import LAST_COLUMNS
from sgoif.finish import add_up
from sgoif.store import ParquetSink, RunFiles, StoreError, merge, merge_evidence, write_examples
from sgoif.store.writer import Pace
from sgoif.training.recorder import MEAN_SIGNALS
from tests.store.visits import batch, kill, store
from tests.training.loops import GroupNormNet, data, train, watch


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A real training: its folder, and the table of examples that it had in memory at its end."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    torch.manual_seed(0)
    train_set, holdout = data(dtype=torch.float32)  # as real models are; visits are stored in float32
    model = GroupNormNet()
    monitor = watch(model, holdout, out=str(folder))
    train(model, train_set, monitor, epochs=4)
    monitor.close()
    assert monitor.counters["faults"] == 0
    return folder, add_up(monitor.recorder)  # before its labels are judged


def joined(buckets):
    tables = list(buckets)
    table = {name: np.concatenate([part[name] for part in tables]) for name in tables[0]}
    order = np.argsort(table["id"], kind="stable")
    return {name: column[order] for name, column in table.items()}


def test_merged_evidence_is_the_runs_own(trained):
    folder, table = trained
    merged = joined(merge_evidence(RunFiles(folder)))
    order = np.argsort(table["id"])
    for name in ("id", "given_label", "suggested_label", "suggested_label_2", "suggested_label_3", "n_visits"):
        np.testing.assert_array_equal(merged[name], table[name][order], err_msg=name)
    assert (merged["n_visits"] == 4).all()
    for name in LAST_COLUMNS:
        np.testing.assert_array_equal(merged[name], table[name][order], err_msg=name)
    assert np.isfinite(table["margin_last"]).all() and (table["runner_up_last"] != table["given_label"]).all()
    floats = [name for name in table if name in merged and "_std" not in name and merged[name].dtype == np.float64]
    assert {"confidence", "suggested_share", "harm", "worst", *MEAN_SIGNALS} <= set(floats)
    for name in floats:
        np.testing.assert_allclose(merged[name], table[name][order], rtol=1e-9, err_msg=name)
    # standardised values are float64 in the run and float32 in a visit: a relative 6e-8 of values up to 6
    for name in ("harm_std", "worst_std", "harm_std_error", "worst_std_error"):
        np.testing.assert_allclose(merged[name], table[name][order], rtol=1e-6, atol=2e-6, err_msg=name)


def test_visits_that_cannot_be_used_add_nothing_but_are_counted(tmp_path):
    one = np.ones(4, np.float32)
    first = batch([1, 2, 3, 4], 0, harm=np.float32([1, 1, 1, np.nan]), flags=np.float32([0, 2, 4, 0]))
    second = batch([1, 2, 3, 4], 1, harm=3 * one, confidence=one, worst_anchor=2 * one)
    merged = joined(merge_evidence(store(tmp_path, first, second)))
    assert merged["n_visits"].tolist() == [2, 2, 2, 2]
    np.testing.assert_allclose(merged["harm"][1:], [3, 3, 3])
    assert 1 < merged["harm"][0] < 3
    assert merged["suggested_label"][1:3].tolist() == [2, 2]


def test_visits_that_met_a_shut_gate_tell_what_the_model_said_and_nothing_of_influence(tmp_path):
    one, shut = np.ones(2, np.float32), np.float32([0, 0.5])
    given = {"flags": np.float32([1, 0]), "confidence": shut, "confidence_worst": shut}
    first = batch([1, 2], 0, loss=2 * one, margin=0 * one, p_given=0.4 * one, runner_up=one, harm=one, **given)
    second = batch([1, 2], 1, loss=4 * one, margin=0 * one, p_given=0.2 * one, runner_up=one, harm=3 * one, **given)
    third = batch([1, 2], 2, loss=9 * one, margin=9 * one, flags=2 * one)
    merged = joined(merge_evidence(store(tmp_path, first, second, third)))
    assert merged["loss"].tolist() == [3, 3] and merged["margin"].tolist() == [0, 0]
    np.testing.assert_allclose(merged["p_given"], [0.3, 0.3], rtol=1e-6)
    np.testing.assert_allclose(merged["p_runner_up"], [0.3, 0.3], rtol=1e-5)
    assert merged["runner_up"].tolist() == [1, 1] and merged["confidence"].tolist() == [0, pytest.approx(1 / 3)]
    assert np.isnan(merged["harm"][0]) and merged["harm"][1] == 2


def test_a_target_without_a_class_takes_no_label_away_and_adds_what_it_can(tmp_path):
    one, none = np.ones(2, np.float32), np.full(2, np.nan, np.float32)
    first = batch([1, 2], 0, harm=one, margin=one, confidence=one)
    soft = batch([1, 2], 1, harm=3 * one, margin=none, worst=none, worst_anchor=-one, confidence=one, flags=8 * one)
    soft.given_labels[:] = -1
    merged = joined(merge_evidence(store(tmp_path, first, soft)))
    assert merged["given_label"].tolist() == first.given_labels.tolist()
    assert merged["harm"].tolist() == [2, 2] and merged["margin"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["int", "string"])
def test_any_number_of_buckets_gives_the_same_examples(tmp_path, kind, monkeypatch):
    rng = np.random.default_rng(0)
    names = np.arange(3000) if kind == "int" else np.array([f"shard-{i % 7}/{i}" for i in range(3000)])
    sink = ParquetSink(tmp_path, pace=Pace(part_bytes=300_000))
    for step in range(40):
        sink.write(batch(rng.choice(names, 500, replace=False), step))
    sink.checkpoint()
    kill(sink)
    again = [batch(rng.choice(names, 500, replace=False), step) for step in range(30, 40)]
    files = store(tmp_path, *again, start_step=30)  # the last ten steps, by a second attempt
    whole = joined(merge_evidence(files, buckets=1))
    assert whole["n_visits"].sum() == 40 * 500
    direct = joined(merge_evidence(files, buckets=8))
    monkeypatch.setattr(merge, "_READ_TWICE", 0.0)  # all through the local disk, and by several shelves
    monkeypatch.setattr(merge, "_OPEN_FILES", 4)
    monkeypatch.setattr(merge, "_GATHERED_ROWS", 700)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    laid_out = list(merge_evidence(files, buckets=16, scratch=scratch))
    assert len(laid_out) == 16 and not list(scratch.iterdir())
    for other in (direct, joined(laid_out)):
        for name, column in whole.items():
            if name in ("id", "id_hash", "given_label", "suggested_label", "n_visits", *LAST_COLUMNS):
                np.testing.assert_array_equal(column, other[name], err_msg=name)
            else:
                np.testing.assert_allclose(column, other[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_the_number_of_buckets_follows_the_memory(tmp_path):
    files = store(tmp_path, batch(np.arange(1000)))
    assert merge.count_buckets(files, 1 << 30) == 1
    assert merge.count_buckets(files, 100_000) == 4  # 1,000 rows at 400 bytes
    assert len(list(merge_evidence(files, memory_bytes=100_000))) == 4
    with pytest.raises(StoreError, match="power of two"):
        list(merge_evidence(files, buckets=3))


def test_write_examples_replaces_the_table(trained):
    folder, table = trained
    files = RunFiles(folder)
    assert write_examples(files, buckets=2) == 48
    assert write_examples(files) == 48
    assert files.sql("select count(*) as n from examples where p_mislabeled is null")["n"].to_pylist() == [48]
    found = RunFiles(folder).table("examples").sort_by("id")
    assert len(list(folder.glob("examples/*/*.parquet"))) == 1
    order = np.argsort(table["id"])
    np.testing.assert_array_equal(found["id"].to_numpy(), table["id"][order])
    np.testing.assert_allclose(found["harm"].to_numpy(), table["harm"][order], rtol=1e-9)


def test_one_long_id_is_merged_without_widening_the_others(tmp_path):
    ids = [f"{i}" for i in range(2000)] + ["long" * 2500, "long" * 2500 + "er"]
    files = store(tmp_path, *(batch(np.array(ids, dtype=object), step) for step in range(2)))
    merged = joined(merge_evidence(files))
    assert sorted(ids) == merged["id"].tolist() and (merged["n_visits"] == 2).all()
    assert write_examples(files) == 2002


def test_the_last_prediction_is_that_of_the_last_usable_visit_by_attempt_step_and_micro_step(tmp_path):
    def said(step, micro, p, **more):
        one = np.ones(2, np.float32)
        return batch([1, 2], step, micro_step=micro, p_given=p * one, margin=p * one, runner_up=10 * p * one, **more)

    sink = ParquetSink(tmp_path)
    for visit in (said(3, 9, 0.1), said(4, 5, 0.2), said(5, 0, 0.9)):
        sink.write(visit)
    sink.checkpoint()
    kill(sink)
    nan = np.full(2, np.nan, np.float32)
    again = (
        said(5, 1, 0.4),  # the second attempt takes the place of step 5
        said(5, 0, 0.3),  # the micro-step before it, written later
        said(6, 0, 0.5, flags=np.float32([2, 0])),  # not finite for example 1
        batch([1, 2], 7, p_given=nan, margin=nan, runner_up=-np.ones(2, np.float32), flags=np.float32([8, 8])),
    )
    merged = joined(merge_evidence(store(tmp_path, *again, start_step=5)))
    np.testing.assert_array_equal(merged["p_given_last"], np.float32([0.4, 0.5]))
    np.testing.assert_array_equal(merged["margin_last"], np.float32([0.4, 0.5]))
    assert merged["runner_up_last"].tolist() == [4, 5]


def test_the_label_of_an_example_is_the_one_that_was_given_last(tmp_path):
    first, second = batch([1, 2], 4, micro_step=3), batch([1, 2], 5)
    first.given_labels[:], second.given_labels[:] = [0, 1], [3, 4]
    sink = ParquetSink(tmp_path)
    sink.write(first)
    sink.checkpoint()
    kill(sink)
    sink = ParquetSink(tmp_path, start_step=5)  # after labels were corrected
    sink.write(second)
    sink.close()
    assert joined(merge_evidence(RunFiles(tmp_path)))["given_label"].tolist() == [3, 4]
