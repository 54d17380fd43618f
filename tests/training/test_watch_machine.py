"""Random user behaviour, legal and not, around ``sgoif.watch``: the training is that of a bare loop, to the bit.

Every run of the tests repeats 40 fixed traces; ``just traces`` draws others, once a week in continuous integration.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import sgoif
from sgoif.errors import SgoifError
from sgoif.records import VisitFlag
from tests.cli.runs import invoke
from tests.training.loops import arrays
from tests.training.twins import (
    ODD,
    PLAN,
    TRAIN_SIZE,
    Augmented,
    Batch,
    Held,
    Twins,
    full_disk,
    hooks_of,
    in_forked_child,
    make_data,
    train_until_killed,
    unfinished_files,
)

FORKSERVER = multiprocessing.get_context("forkserver")  # forks from a process that has imported all, and done nothing
FORKSERVER.set_forkserver_preload(["tests.training.twins"])
TRACES = int(os.environ.get("SGOIF_TRACES", "40"))

SEEDS = st.integers(0, 10_000)


def _batch(seed: int, size: int, odd: list[tuple[str, Any]]) -> Batch:
    return replace(Batch(seed=seed, size=size), **dict(odd))


BATCHES = st.builds(_batch, SEEDS, st.integers(2, 9), st.lists(st.sampled_from(ODD), max_size=2))
ORDINARY = st.builds(Batch, seed=SEEDS, size=st.integers(2, 9))


class WatchMachine(RuleBasedStateMachine):
    """One user, one script."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="watch-machine-"))
        self.held = Held.now()
        self.began = False  # a step was scored: from here on nothing of ours leaves step()
        self.lost_folders: set[Path] = set()  # that were taken away
        self.was_dropped = False
        self.kept: dict[str, Any] | None = None
        self.is_closed = False
        self.number = 0

    # Setting up.

    @initialize(
        net=st.sampled_from(["mlp", "cnn"]),
        task=st.sampled_from(["classification"] * 3 + ["multilabel"]),
        on_disk=st.booleans(),
        is_augmented=st.booleans(),
        keep_visits=st.sampled_from(["all", "all", "last", "none"]),
        is_disabled=st.sampled_from([False] * 7 + [True]),
        held_out=st.integers(12, 40),
    )
    def set_up(self, net, task, on_disk, is_augmented, keep_visits, is_disabled, held_out) -> None:
        self.twins = Twins(net, task)
        self.on_disk, self.is_disabled = on_disk, is_disabled
        inputs, labels = make_data(held_out, seed=2)
        if task == "multilabel":
            labels = self.twins.labels[:held_out]
            inputs = inputs[: len(labels)]
        self.anchors = Augmented(inputs, labels) if is_augmented else (inputs, labels)
        self.keep_visits = keep_visits if task == "classification" else "all"
        self.watch()

    def watch(self, **more: Any) -> None:
        """Begin a run, into a new folder unless one is given."""
        if self.on_disk and "out" not in more:
            self.number += 1
            more["out"] = str(self.folder / f"run-{self.number}")
        self.out = Path(more["out"]) if self.on_disk else None
        self.settings, self.is_new = more, self.out is not None and not self.out.exists()
        side = self.twins.watched

        def make() -> Any:
            return sgoif.watch(
                side.model,
                side.optimizer,
                anchors=self.anchors,
                train_size=TRAIN_SIZE,
                task=self.twins.task,
                budget=sgoif.Budget(plan=PLAN, keep_visits=self.keep_visits),
                **more,
            )

        if self.is_disabled:
            os.environ["SGOIF_DISABLE"] = "1"
        side.monitor = None
        try:
            side.monitor = self.twins.alone(make)
        except SgoifError as error:
            assert "NaN or infinite" in str(error) and not self.twins.is_finite, error
        finally:
            os.environ.pop("SGOIF_DISABLE", None)
        self.began = self.is_closed = self.is_resumed = False
        side.offered = 0

    @property
    def monitor(self) -> Any:
        return self.twins.watched.monitor

    @property
    def is_lost(self) -> bool:
        return self.out in self.lost_folders

    @property
    def is_open(self) -> bool:
        return self.monitor is not None and not self.is_closed

    # Steps.

    @rule(batch=BATCHES)
    def step(self, batch: Batch) -> None:
        self.twins.batch(batch)
        self.after(batch)

    @rule(batches=st.lists(ORDINARY, min_size=3, max_size=8))
    def train(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.twins.batch(batch)
            self.after(batch)

    @rule(outer=BATCHES, inner=BATCHES)
    def nest(self, outer: Batch, inner: Batch) -> None:
        self.twins.nested(outer, inner)
        self.after(outer, is_certain=False)

    @rule(batch=ORDINARY)
    def leave_a_step_open(self, batch: Batch) -> None:
        self.twins.leave_open(batch)

    @rule(batch=ORDINARY)
    def drop_a_generator(self, batch: Batch) -> None:
        self.twins.drop_generator(batch)

    def after(self, batch: Batch, is_certain: bool = True) -> None:
        """A set-up may be refused until a step was scored, and then nothing may have been written."""
        side = self.twins.watched
        if side.refusal is not None:
            assert not self.began, f"left step() after the first step: {side.refusal!r}"
            assert not self.is_disabled
            is_empty = not side.monitor.counters["visits"]  # none of an earlier step whose loss could not be checked
            assert not (is_certain and is_empty and self.is_new and self.out.exists()), "a refused set-up left a folder"
            assert hooks_of(side.model) == 0
            side.monitor = side.refusal = None  # an exception holds all that it passed through
            self.was_dropped |= self.on_disk
        elif self.is_open and batch.is_ordinary and is_certain and side.monitor.is_on and side.could_check:
            self.began = True

    @rule(is_training=st.booleans())
    def set_mode(self, is_training: bool) -> None:
        self.twins.both(lambda side: side.model.train(is_training) and None)

    @rule(needs_grad=st.booleans())
    def freeze_backbone(self, needs_grad: bool) -> None:
        def action(side: Any) -> None:
            for parameter in side.model[0].parameters():
                parameter.requires_grad_(needs_grad)

        self.twins.both(action)

    @rule()
    def roll_back(self) -> None:
        self.twins.roll_back()

    @rule(lr=st.sampled_from([0.0, 0.01, 0.5]))
    def change_rate(self, lr: float) -> None:
        def action(side: Any) -> None:
            side.optimizer.param_groups[0]["lr"] = lr

        self.twins.both(action)

    # Reading.

    @precondition(lambda self: self.monitor is not None)
    @rule()
    def look(self) -> None:
        monitor = self.monitor
        self.twins.alone(lambda: (monitor.reading, repr(monitor), str(monitor), str(monitor.plan)))
        self.check_counters()

    def check_counters(self) -> dict[str, int]:
        found = dict(self.twins.alone(lambda: self.monitor.counters))
        assert all(value >= 0 for value in found.values()), found
        if self.is_disabled:
            return found
        if "visits_offered" in found:
            parts = found["visits"] + found["visits_lost"] + found["visits_refused"]
            assert found["visits_offered"] == parts == self.twins.watched.offered, (found, self.twins.watched.offered)
        return found

    @precondition(lambda self: self.is_open)
    @rule()
    def snapshot(self) -> None:
        path = self.folder / "snapshot.sgoif"
        found = self.twins.alone(lambda: self.monitor.snapshot(str(path)))
        assert found is None or path.exists()

    @precondition(lambda self: self.is_open)
    @rule()
    def detach(self) -> None:
        self.twins.alone(self.monitor.detach)

    # Saving and going on.

    @precondition(lambda self: self.is_open and not self.is_disabled)
    @rule()
    def save(self) -> None:
        self.kept = self.twins.save() | {"offered": self.twins.watched.offered, "settings": self.settings}
        self.kept |= {"out": self.out}

    @precondition(lambda self: self.kept is not None and not self.is_closed)
    @rule()
    def resume(self) -> None:
        kept, self.kept = self.kept, None
        assert kept is not None
        if self.out is not None and self.out != kept["out"] and self.monitor is not None:
            self.close()
        elif self.monitor is not None:
            self.drop()
        self.twins.load(kept)
        self.watch(**kept["settings"])
        if self.monitor is not None:
            self.twins.alone(lambda: self.monitor.load_state_dict(kept["monitor"]))
            self.twins.watched.offered = kept["offered"]
            self.is_resumed = not self.on_disk  # the visits so far went with the first monitor

    @precondition(lambda self: self.is_closed and self.on_disk and not self.is_disabled)
    @rule(overwrite=st.booleans())
    def watch_the_same_folder(self, overwrite: bool) -> None:
        assert self.out is not None
        holds_a_run = (self.out / "run.json").exists()
        try:
            self.watch(out=str(self.out), **({"overwrite": True} if overwrite else {}))
        except SgoifError:
            assert holds_a_run and not overwrite
            self.twins.watched.monitor = None
            return
        if holds_a_run and not overwrite and self.monitor is not None:
            self.twins.batch(Batch())
            assert self.twins.watched.refusal is not None, "a finished run was written over without a word"
            self.twins.watched.monitor = self.twins.watched.refusal = None
            self.was_dropped = True

    @precondition(lambda self: self.monitor is None or self.is_closed)
    @rule()
    def watch_anew(self) -> None:
        self.watch()

    @precondition(lambda self: self.is_open)
    @rule()
    def drop(self) -> None:
        """Forget the monitor without a word."""
        self.was_dropped |= self.on_disk
        self.twins.watched.monitor = None
        self.twins.alone(lambda: None)

    # Trouble from outside.

    @precondition(lambda self: self.is_open and self.on_disk and self.began and not self.is_lost)
    @rule(kind=st.sampled_from(["deleted", "a file"]))
    def lose_the_folder(self, kind: str) -> None:
        assert self.out is not None
        self.do_not_wait()
        shutil.rmtree(self.out, ignore_errors=True)
        if kind == "a file":
            self.out.write_text("not a folder")
        self.lost_folders.add(self.out)

    @precondition(lambda self: self.is_open and self.on_disk and self.began and not self.is_lost)
    @rule()
    def fill_the_disk(self) -> None:
        self.do_not_wait()

        def save() -> None:
            with full_disk():
                self.monitor.state_dict()

        self.twins.alone(save)

    def do_not_wait(self) -> None:
        """Give up at once what cannot be written, so that traces are short."""
        opened = getattr(getattr(self.monitor, "_sink", None), "_opened", None)
        if opened is not None:
            opened.retry_after_s = ()

    @precondition(lambda self: self.is_open)
    @rule(closes=st.booleans())
    def fork(self, closes: bool) -> None:
        ids, targets, _ = self.twins.given(Batch(seed=1))

        def child() -> None:
            with self.monitor.step(ids, targets):
                pass  # a backward pass after a fork is not safe in torch itself
            if closes:
                self.monitor.close()

        code = self.twins.alone(lambda: in_forked_child(child))
        assert code == 0 or (code == 1 and not self.began), f"the forked child ended with {code}"

    # The end.

    @precondition(lambda self: self.is_open)
    @rule()
    def close(self) -> None:
        self.check_counters()
        run = self.twins.alone(self.monitor.close)
        self.is_closed, self.run = True, run
        assert hooks_of(self.twins.watched.model) == 0
        self.check_run(run)

    @precondition(lambda self: self.is_closed)
    @rule()
    def close_again(self) -> None:
        again = self.twins.alone(self.monitor.close)
        assert len(again.table["id"]) == len(self.run.table["id"])

    def check_run(self, run: Any) -> None:
        """The run opens, every way that users open one, and agrees with what was counted."""
        counters, is_stored = self.check_counters(), self.out is not None and not (self.is_lost or self.is_disabled)
        check_tables(sgoif.load(self.out) if is_stored else run)
        if self.is_disabled:
            assert len(run.table["id"]) == 0
            return
        assert run.info["counters"]["visits"] == counters["visits"]
        if self.keep_visits == "all" and not self.is_lost and not self.is_resumed:
            check_visits(run, counters)
        if is_stored:
            assert run.url is not None, run.info
            assert not unfinished_files(self.out)
            done = invoke("info", str(self.out))
            assert done.exit_code == 0, done.stderr

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is not None:  # a check has failed already
                return
            if hasattr(self, "twins"):
                if self.is_open:
                    self.close()
                self.twins.watched.monitor = None
                assert hooks_of(self.twins.watched.model) == 0
            gc.collect()
            if not self.was_dropped:
                self.held.check_nothing_added()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def check_tables(run: Any) -> None:
    """Probabilities are null with a reason, or lie in [0, 1]; questions get answers."""
    for table in (run.table, arrays(run.label_issues())):
        for name in ("p_mislabeled", "p_mislabeled_low", "p_mislabeled_high"):
            values = np.asarray(table[name], np.float64)
            assert ((values >= 0) & (values <= 1) | np.isnan(values)).all(), values
        reasons = np.asarray(table["no_p_reason"], object)
        is_null = np.isnan(np.asarray(table["p_mislabeled"], np.float64))
        assert all(bool(reason) == bool(null) for reason, null in zip(reasons, is_null, strict=True))
    (count,) = run.sql("select count(*) as n from examples").to_pydict()["n"]
    assert count == len(run.table["id"])
    assert repr(run)


def check_visits(run: Any, counters: dict[str, int]) -> None:
    """Rows that were kept, and rows that were dropped and counted, are the visits."""
    if run.info.get("task") == "multilabel":
        return
    flags = np.asarray(run.visits["flags"]).astype(np.int64) if len(run.visits) else np.zeros(0, np.int64)
    rows, dropped = len(flags), int(run.info.get("dropped_rows", 0))  # dropped rows may be of other tables, too
    has_repeats = bool((flags & int(VisitFlag.REPEATED)).any())  # ids that came several times in a step are one row
    assert rows <= counters["visits"]
    if not has_repeats:
        assert rows + dropped >= counters["visits"], (rows, dropped, counters)
    if not dropped:
        assert run.table["n_visits"].sum() == rows


SETTINGS = settings(
    max_examples=TRACES,
    stateful_step_count=18,
    deadline=None,
    derandomize="SGOIF_TRACE_SEED" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_whatever_a_user_does_the_training_is_that_of_a_bare_loop():
    gc.freeze()  # each trace ends with a collection, which need not look at all of torch
    try:
        run_state_machine_as_test(WatchMachine, settings=SETTINGS)
    finally:
        gc.unfreeze()


@settings(
    max_examples=max(3, TRACES // 25), deadline=None, database=None, derandomize="SGOIF_TRACE_SEED" not in os.environ
)
@given(
    after_s=st.floats(0, 0.6),
    number=st.sampled_from([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]),
    keep_visits=st.sampled_from(["all", "last"]),
)
def test_a_training_that_is_killed_at_any_moment_leaves_a_run_that_opens(after_s, number, keep_visits):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        offered, code = killed_training(str(out), {"keep_visits": keep_visits}, after_s, number)
        assert code == -number
        assert not unfinished_files(out) or number == signal.SIGKILL
        if not (out / "run.json").exists():
            assert number == signal.SIGKILL or offered == 0
            return
        run = sgoif.load(out)
        check_tables(run)
        done = invoke("info", str(out))
        assert done.exit_code == 0, done.stderr
        (count,) = run.sql("select count(*) as n from visits").to_pydict()["n"]
        assert count <= offered + 6  # of the step that the kill met
        if number == signal.SIGTERM and keep_visits == "all":
            assert count >= offered - 6, f"{offered} rows were given, {count} are on disk"


def killed_training(out: str, more: dict[str, Any], after_s: float, number: int) -> tuple[int, int | None]:
    """Train in a process of its own, kill it, and return how many rows it gave and how it ended."""
    ours, theirs = FORKSERVER.Pipe()
    process = FORKSERVER.Process(target=train_until_killed, args=(theirs, out, more), daemon=True)
    process.start()
    theirs.close()
    offered = ours.recv()
    time.sleep(after_s)
    os.kill(process.pid, number)
    process.join(60)
    while ours.poll():
        try:
            offered = ours.recv()
        except EOFError:
            break
    return offered, process.exitcode
