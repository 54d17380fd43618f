"""The monitor of tags in a real loop: it changes nothing, finds what was planted, and gives way when it fails."""

import math

import numpy as np
import pytest
import torch

import sgoif
from benchmarks.metrics import average_precision, calibration_of_top
from sgoif.errors import SgoifError
from tests.training.multilabel.worlds import data, fresh, losses, train, watch


@pytest.fixture(scope="module")
def finished():
    inputs, given, wrong, holdout = data()
    model = fresh()
    monitor = watch(model, holdout, class_names=list("abcde"))
    train(model, inputs, given, monitor, epochs=8)
    return monitor.close(), given.numpy() > 0.5, wrong.numpy()


@pytest.mark.parametrize(("side", "bit"), [("extra", True), ("missing", False)])
def test_planted_errors_are_found_and_probabilities_are_near_the_truth(finished, side, bit):
    run, given, wrong = finished
    table = run.sql("select * from tags").to_pydict()
    ids, tags, bits = (np.array(table[name]) for name in ("id", "tag", "given"))
    assert (bits == given[ids, tags]).all()
    mine = bits == bit
    assert mine.sum() == (given == bit).sum()  # with five tags none is passed over
    truth, p = wrong[ids, tags][mine], np.array(table["p_wrong"])[mine]
    assert average_precision(p, truth) > 0.99 * average_precision(np.array(table["loss"])[mine], truth)
    assert 0.6 < run.info["expected_tag_errors"][side] / truth.sum() < 1.5
    first = calibration_of_top(p, truth)[0]
    assert abs(first["value"] - first["true"]) < 0.25
    assert (np.array(table["p_wrong_low"])[mine] <= p).all() and (p <= np.array(table["p_wrong_high"])[mine]).all()


def test_issues_are_listed_most_suspicious_first(finished):
    run, given, wrong = finished
    rows = run.tag_issues(top=40).to_pylist()
    p = [row["p_wrong"] for row in rows]
    assert p == sorted(p, reverse=True) and len(rows) == 40
    for row in rows:
        assert row["verdict"] == ("extra tag" if given[row["id"], row["tag"]] else "missing tag")
        assert row["tag_name"] == "abcde"[row["tag"]]
    assert np.mean([wrong[row["id"], row["tag"]] for row in rows]) > 0.8
    only = run.tag_issues(verdict="missing tag", tag=2, min_p=0.5).to_pylist()
    assert only and all(row["tag"] == 2 and row["verdict"] == "missing tag" and row["p_wrong"] >= 0.5 for row in only)
    with pytest.raises(SgoifError, match="verdict must be"):
        run.tag_issues(verdict="odd")


def test_an_examples_probability_is_that_of_any_of_its_tags(finished):
    run, *_ = finished
    found = run.sql(
        "select e.id, e.p_mislabeled as p, 1 - product(1 - t.p_wrong) as q from examples e join tags t using (id) "
        "group by e.id, e.p_mislabeled"
    ).to_pydict()
    np.testing.assert_allclose(found["p"], found["q"], atol=1e-6)


def test_unknown_tags_are_passed_over():
    inputs, given, _, (held, held_tags) = data()
    generator = torch.Generator().manual_seed(5)
    hidden = torch.rand(given.shape, generator=generator) < 0.3
    given = given.masked_fill(hidden, -1.0)
    given[hidden & (torch.arange(len(given)) % 2 == 0)[:, None]] = math.nan
    held_tags = held_tags.masked_fill(torch.rand(held_tags.shape, generator=generator) < 0.2, math.nan)
    model = fresh()
    monitor = watch(model, (held, held_tags))
    train(model, inputs, given, monitor)
    run = monitor.close()
    assert run.info["counters"]["faults"] == 0 and "calibration_error" not in run.info
    table = run.sql("select id, tag, p_wrong from tags").to_pydict()
    pairs = set(zip(table["id"], table["tag"], strict=True))
    assert len(pairs) == int((~hidden).sum()) == run.info["num_pairs"]
    assert not any(hidden[i, t] for i, t in pairs)
    assert np.isfinite(table["p_wrong"]).all()


def test_only_the_most_believed_absent_tags_are_kept():
    inputs, given, _, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    monitor.engine.most_absent = 1
    train(model, inputs, given, monitor)
    run = monitor.close()
    kept = run.sql("select given, count(*) as n from tags group by given order by given").to_pydict()["n"]
    assert kept[1] == run.info["num_present"] and 1_100 < kept[0] < 0.7 * run.info["num_absent"]
    assert 0 < run.info["share_noticed"] < 1


def test_a_hold_out_that_cannot_be_judged_by_gives_a_list_without_probabilities():
    inputs, given, _, (held, tags) = data()
    model = fresh()
    monitor = watch(model, (held[:40], torch.zeros_like(tags[:40])))  # no tag is there at all
    train(model, inputs, given, monitor)
    run = monitor.close()
    assert run.info["counters"]["faults"] == 0
    assert all(row["p_wrong"] is None or math.isnan(row["p_wrong"]) for row in run.tag_issues(top=5).to_pylist())
    assert np.isnan(run.table["p_mislabeled"]).all() and len(run.table["id"])
    assert set(run.table["no_p_reason"]) == {run.info["no_p_reason"]}


def test_four_micro_batches_score_like_one_batch():
    inputs, given, _, holdout = data()
    tables = []
    for parts in (1, 4):
        model = fresh().eval()
        monitor = watch(model, holdout, accumulate=parts)
        for _ in range(3):
            for ids in torch.arange(120).split(120 // parts):
                with monitor.step(ids, given[ids]):
                    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs[ids]), given[ids])
                    (loss / parts).backward()
        monitor.flush()
        tables.append(monitor.recorder.tags())
    for name in ("harm", "worst", "probe_margin", "loss"):
        np.testing.assert_allclose(*(np.sort(table[name]) for table in tables), rtol=1e-4, atol=1e-5)


def test_setup_mistakes_are_said_before_training():
    """Before, some settings were ignored without a word."""
    *_, holdout = data()
    for said, given, settings in (
        (r"has no Method\.solver", holdout, {"solver": "direct"}),
        ("5 outputs, but the hold-out 4", (holdout[0], holdout[1][:, :4]), {}),
        ("examples, tags", (holdout[0], holdout[1][:, 0]), {}),
        ("task must be one of", holdout, {"task": "odd"}),
        (r"has no Budget\.keep_visits; leave it out", holdout, {"keep_visits": "last"}),
        (r"has no Method\.planned_steps; leave it out", holdout, {"planned_steps": 100}),
        (r"has no Budget\.peer_timeout_s; leave it out", holdout, {"peer_timeout_s": 5.0}),
    ):
        with pytest.raises(SgoifError, match=said):
            watch(fresh(), given, **settings)


def test_an_audit_finds_what_a_watched_training_finds():
    inputs, given, wrong, holdout = data()
    model = train(fresh(), inputs, given, epochs=6)
    state = torch.get_rng_state()
    run = sgoif.audit(model, (inputs, given), anchors=holdout, trusted=True, batch_size=128, task="multilabel")
    assert torch.equal(state, torch.get_rng_state()) and model.training
    assert run.info["kind"] == "audit" and run.info["num_pairs"] == given.numel()
    for side, bit in (("extra", 1), ("missing", 0)):
        truth = wrong[given == bit].sum().item()
        assert 0.6 < run.info["expected_tag_errors"][side] / truth < 1.5
    rows = run.tag_issues(top=40).to_pylist()
    assert np.mean([bool(wrong[row["id"], row["tag"]]) for row in rows]) > 0.8
    with pytest.raises(SgoifError, match="no snapshot"):
        sgoif.audit(model, (inputs, given), anchors=holdout, snapshot="x", task="multilabel")


def test_visits_that_cannot_be_added_up_are_counted_as_lost(monkeypatch):
    inputs, given, _, holdout = data()
    model = fresh()
    monitor = watch(model, holdout)
    train(model, inputs, given, monitor, epochs=1)
    monitor.flush()

    def fail(*_):
        raise MemoryError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(monitor.recorder, "_add_up", fail)
        with monitor.step(torch.arange(60), given[:60]):
            losses(model(inputs[:60]), given[:60], "mean").backward()
        monitor.flush()
    run = monitor.close()
    counters = run.info["counters"]
    assert run.info["visits_lost"] == {"MemoryError: no room": 60} and counters["visits_lost"] == 60
    assert counters["visits_refused"] == 60  # the first step comes before there are anchors
    assert counters["visits_offered"] == sum(counters[name] for name in ("visits", "visits_refused", "visits_lost"))


def test_one_output_is_one_tag():
    """What a model with one logit is told to do finds its wrong labels."""
    inputs, given, wrong, holdout = data(tags=1)
    model = fresh(tags=1)
    monitor = watch(model, holdout)
    train(model, inputs, given, monitor)
    rows = monitor.close().tag_issues(top=30).to_pylist()
    assert np.mean([bool(wrong[row["id"], 0]) for row in rows]) > 0.7
