"""A run that cannot give probabilities says why: for itself and for every example, wherever it is read."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif
from sgoif.evidence import measure_competence
from sgoif.scanning.frozen import audit_embeddings
from tests.cli.runs import answer, invoke, noisy, write_run
from tests.grouped import grouped
from tests.training.worlds import world

P = ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high")


def trained(train, holdout, *, epochs=4, mixed=False, soft=0, lr=0.1, plan=None, **settings):
    """Watch a small network; ``mixed`` mixes every batch, the first ``soft`` examples have soft targets."""
    torch.manual_seed(0)
    points, given = train[:2]
    num_classes = int(given.max()) + 1
    model = nn.Sequential(nn.Linear(points.shape[1], 32), nn.ReLU(), nn.Linear(32, num_classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    plan = plan or sgoif.Plan(refresh_every=10, examples_per_refresh=256)
    monitor = sgoif.watch(
        model, optimizer, anchors=holdout[:2], train_size=len(given), **grouped({"plan": plan, **settings})
    )
    generator = torch.Generator().manual_seed(0)
    whole = F.one_hot(given, num_classes).float()
    for _ in range(epochs):
        for rows in torch.randperm(len(given), generator=generator).split(50):
            inputs, targets = points[rows], given[rows]
            if mixed:
                inputs, targets = 0.6 * inputs + 0.4 * inputs.flip(0), 0.6 * whole[rows] + 0.4 * whole[rows].flip(0)
            elif soft:
                targets = torch.where((rows < soft)[:, None], 0.8 * whole[rows] + 0.2 / num_classes, whole[rows])
            with monitor.step(rows, targets):
                F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor.close()


def mixed_up(**settings):
    train, holdout = world(num=400)
    return trained(train, holdout, mixed=True, soft_targets="mixed", trusted=True, **settings)


def ignorant(**settings):
    """Labels that have nothing to do with the inputs: the network cannot be right more often than by guessing."""
    train, holdout = world(num=400)
    shuffled = train[1][torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(1))]
    return trained((train[0], shuffled), holdout, trusted=True, **settings)


def tiny(**settings):
    train, holdout = world(num=400)
    return trained(train, tuple(part[:1] for part in holdout[:2]), trusted=True, **settings)


CASES = {
    mixed_up: "no target names one class",
    ignorant: "of 300 held-out examples, and guessing is right on",
    tiny: "0 of 4 classes have at least 5 held-out examples",
}


class Messages(logging.Handler):
    """What was logged."""

    def __init__(self):
        super().__init__()
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


@pytest.fixture(scope="module", params=CASES, ids=lambda make: make.__name__)
def case(request, tmp_path_factory):
    """Give what made a run on disk, the run, and what was logged meanwhile."""
    log, messages = logging.getLogger("sgoif"), Messages()
    log.addHandler(messages)
    run = request.param(out=str(tmp_path_factory.mktemp("no_probabilities") / "run"))
    log.removeHandler(messages)
    return request.param, run, messages.said


def test_the_columns_are_there_and_the_reason_is_the_true_one(case):
    make, on_disk, said = case
    reason = on_disk.info["no_p_reason"]
    assert CASES[make] in reason
    assert sum(reason in message for message in said) == 1  # close() says so, once
    for run in (on_disk, *([make()] if make is tiny else [])):  # the second one in memory
        assert run.info["no_p_reason"] == reason and reason in repr(run) and not run.is_calibrated
        assert all(np.isnan(run.table[name]).all() for name in P) and set(run.table["no_p_reason"]) == {reason}
        issues = run.label_issues(top=5).select([*P, "no_p_reason", "label_score"])  # before, a KeyError
        assert all(issues[name].null_count == len(issues) for name in P)
        lowest = np.sort(run.table["margin"][np.isfinite(run.table["margin"])])[:5]  # none where no target has a class
        scores = issues["label_score"].to_numpy()[: len(lowest)]
        if make is ignorant:  # its labels are judged, and nobody is told numbers
            assert len(scores) and (np.diff(scores) >= 0).all() and scores.min() >= 0 and scores.max() <= 1
        else:
            np.testing.assert_allclose(scores, 1 / (1 + np.exp(-lowest)), rtol=1e-6)
        assert run.examples()["p_mislabeled"].null_count == len(run.examples())
        held = run.holdout()
        assert held["p_mislabeled"].null_count == len(held) and set(held["no_p_reason"].to_pylist()) <= {reason}
        assert run.sql("select count(p_mislabeled) as n from examples")["n"][0].as_py() == 0


def test_the_commands_and_the_page_give_the_same_reason(case, tmp_path):
    make, run, _ = case
    reason, url = run.info["no_p_reason"], run.url
    assert answer("info", url)["summary"]["no_p_reason"] == reason
    assert reason in " ".join(invoke("info", url).stdout.split())
    issues = answer("issues", url)
    assert issues["summary"]["no_p_reason"] == reason
    assert all(row["p_mislabeled"] is None and row["no_p_reason"] == reason for row in issues["issues"])
    checked = invoke("check", url, "--max-error-rate", "5%")
    assert checked.exit_code == 2 and reason in " ".join(checked.stdout.split())
    if make is mixed_up:  # there is no label to show
        return
    (page,) = run.report(tmp_path / "page.html")
    assert reason.partition(":")[0][:60] in page.read_text(encoding="utf-8")


def rows_of(table):
    return [{name: row[name] for name in ("id", "source", *P, "no_p_reason")} for row in table]


@pytest.mark.parametrize("kind", ["soft", "not calibrated"])
def test_python_and_the_command_list_the_same_labels(kind, tmp_path):
    train, holdout = world(num=420, holdout_rate=0.1)
    settings = {"soft": 200, "soft_targets": "soft"} if kind == "soft" else {}
    epochs = 1 if kind == "not calibrated" else 12
    url = str(tmp_path / "run")
    run = trained(train, holdout, epochs=epochs, out=url, **settings)
    asked = [{}, {"top": 7}] if kind == "not calibrated" else [{}, {"top": 7}, {"min_p": 0.3}]
    for question in asked:
        flags = ["--min-p", question["min_p"]] if "min_p" in question else ["--top", question.get("top", 10_000)]
        flags += ["--top", 10_000] if "min_p" in question else []
        listed = answer("issues", url, *flags)["issues"]
        assert rows_of(run.label_issues(**question).to_pylist()) == rows_of(listed)
    train_rows = [row for row in listed if row["source"] == "train"]
    if kind == "soft":  # before, 420 rows in Python: a soft target is no label that could be wrong
        assert not {row["id"] for row in train_rows} & set(range(200))
        assert set(run.table["no_p_reason"][run.table["given_label"] < 0]) <= {
            "its target names no class (Mixup, CutMix or soft labels)"
        }


@pytest.mark.parametrize(
    ("right", "classes", "is_competent", "said"),
    [
        (np.arange(1000) < 370, 10, False, "at least 40.0% is needed"),  # 95 / 84 / 70% were promised, 19% were wrong
        (np.arange(1000) < 570, 2, False, "at least 66.7% is needed"),  # tiny BERT: "0 errors" of 160 in 1,600
        (np.arange(6) < 5, 2, False, "may be luck"),
        (np.arange(30) < 21, 2, True, None),
        (np.zeros(0, bool), 2, False, "not tried on any held-out example"),
    ],
)
def test_competence_is_held_against_guessing(right, classes, is_competent, said):
    found = measure_competence(right, np.arange(len(right)) % classes, classes)
    assert found.is_competent is is_competent
    assert found.why_not is None if said is None else said in found.why_not


def test_a_rare_class_is_no_excuse_for_always_saying_the_other():
    labels = (np.arange(1000) % 20 == 0).astype(np.int64)
    assert not measure_competence(labels == 0, labels, 2).is_competent  # right on 95%


def test_a_doubt_about_the_totals_leaves_the_order_and_no_sums(tmp_path):
    reason = "the model has learnt labels by heart, wrong ones too, so that their number would come out too low"
    url = write_run(tmp_path / "run", noisy(), no_totals_reason=reason, expected_errors=None)
    summary = answer("issues", url)["summary"]
    totals = ("expected_errors", "error_rate", "error_rate_low", "error_rate_high")
    assert summary["is_calibrated"] and all(summary[name] is None for name in totals)
    assert reason in repr(sgoif.load(url))
    done = invoke("check", url, "--max-class-error-rate", "50%")
    assert done.exit_code == 2 and "by heart" in " ".join(done.stdout.split())
    assert answer("issues", url)["issues"][0]["p_mislabeled"] == 0.98


@pytest.mark.usefixtures("quick_heads")
def test_a_class_of_four_examples_does_not_change_the_number_of_errors_expected():
    generator = torch.Generator().manual_seed(0)
    truth = torch.cat([torch.arange(2100) % 3, torch.full((4,), 3)])
    rows = 1.3 * torch.randn(4, 20, generator=generator)[truth] + torch.randn(2104, 20, generator=generator)
    given, wrong = truth.clone(), torch.arange(2104) % 10 == 0
    wrong[2100:] = False
    given[wrong] = (truth[wrong] + 1) % 3
    run = audit_embeddings(rows.numpy(), given.numpy(), np.arange(2104), num_classes=4)
    assert 0.85 < np.nansum(run.table["p_mislabeled"]) / wrong.numpy().sum() < 1.15
