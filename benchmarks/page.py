"""The review page at full size, in a real browser.

CIFAR-10's 50,000 training images with human labels (`worst`), judged on frozen features; a page of the 3,000 most
suspicious ones with their pictures. Batches are accepted, every card is decided by a key press, views are opened and
cards are sorted and searched; each step is timed inside the browser from the event to the frame after it. What the page
does later, while the hand rests, is timed as the tasks that keep the browser from anything else. Then the page is
loaded again, and everything must still be there; and the decisions are loaded from their file into a browser that has
none.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data, frozen, noise
from benchmarks.experiment import FROZEN, Experiment
from benchmarks.trust.sets import SIDE
from sgoif.run import Run
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.scan_run import ScanRun

LIMIT_MS = 100
_KEYS = "k1d1u1n1"  # mostly what a reviewer presses, in turn

# The frame after the event is waited for, so that layout and painting count.
_TIMED = """async (keys) => {
  const took = [];
  for (const key of keys) {
    const start = performance.now();
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    took.push(performance.now() - start);
  }
  return took;
}"""


# Tasks of more than 50 ms, by when they began; the browser tells of no shorter ones.
_WATCH_TASKS = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) longTasks.push(task.duration);
  }).observe({ type: "longtask" });
}"""

# Views by their addresses, and the ways to choose cards.
_CHOSEN = """async () => {
  const took = {};
  const time = async (name, work) => {
    const start = performance.now();
    work();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    took[name] = performance.now() - start;
  };
  const set = (id, value, kind) => {
    document.getElementById(id).value = value;
    document.getElementById(id).dispatchEvent(new Event(kind));
  };
  const click = (id) => document.getElementById(id).click();
  for (const tab of ["result", "overview", "review"]) await time(tab, () => click(`tab-${tab}`));
  for (const mode of ["focus", "batches", "cards"]) await time(mode, () => click(`mode-${mode}`));
  for (const sort of ["p", "doubt", "pair"]) await time(`sort ${sort}`, () => set("sort", sort, "change"));
  for (const text of ["1", "12", ""]) await time(`find ${text}`, () => set("filter-id", text, "input"));
  return took;
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One page."""

    examples: int = 50_000
    cards: int = 3_000
    seed: int = 1


def make_run(examples: int, seed: int) -> Run:
    """Judge human labels of CIFAR-10 on frozen features, with no clean label."""
    images = data.cifar10("train")
    given = noise.apply("worst", images.labels, seed=seed, ids=np.arange(len(images.labels)))
    given, ids = given[:examples].astype(np.int64), np.arange(examples)
    facts = {"class_names": list(images.class_names)}
    rows = frozen.embeddings("train", side=SIDE, first=len(images.labels))[:examples]
    return audit_embeddings(rows, given, ids, num_classes=10, run=ScanRun(facts=facts))


def decide_all(page: Any, count: int) -> list[float]:
    """Press keys until every card is decided; the milliseconds that each took."""
    keys = [_KEYS[i % len(_KEYS)] for i in range(count)]
    took: list[float] = []
    for start in range(0, count, 250):
        took += page.evaluate(_TIMED, keys[start : start + 250])
    return took


def load_decisions(browser: Any, path: Path, rows: str) -> dict[str, Any]:
    """Load a file of decisions into a browser that has none: its longest task, and how many were taken."""
    page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
    page.goto(f"{path.as_uri()}#cards")
    page.wait_for_selector(".card")
    page.evaluate(_WATCH_TASKS)
    page.set_input_files("#load", {"name": "decisions.csv", "mimeType": "text/csv", "buffer": rows.encode()})
    page.wait_for_function("sgoif.decided.size > 0")
    page.wait_for_timeout(1000)
    return {"taken": page.evaluate("sgoif.decided.size"), "longest_task_ms": page.evaluate("Math.max(0, ...longTasks)")}


def examine(path: Path, count: int) -> dict[str, Any]:
    """Open the page, decide on all cards, load it again."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{path.as_uri()}#batches")
        page.wait_for_selector(".tile, #batches-done button")
        opened = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        page.evaluate(_WATCH_TASKS)
        chosen = page.evaluate(_CHOSEN)
        page.click("#mode-batches")
        batches = page.evaluate(_TIMED, ["Enter", "z", "Enter"])
        in_batches = page.evaluate("sgoif.decided.size")
        page.click("#mode-focus")
        focus = page.evaluate(_TIMED, list(_KEYS))
        page.click("#mode-cards")
        took = decide_all(page, count)
        took += [*chosen.values(), *batches, *focus]
        decided = page.evaluate("sgoif.decided.size")
        timing = "() => { const start = performance.now(); sgoif.estimate(); return performance.now() - start; }"
        estimated = page.evaluate(timing)
        page.wait_for_timeout(1000)  # until the hand has rested
        tasks = page.evaluate("longTasks")
        before = page.evaluate("sgoif.toCsv(sgoif.decisionRows())")
        page.reload()
        after = page.evaluate("sgoif.toCsv(sgoif.decisionRows())")
        loaded = load_decisions(browser, path, before)
        browser.close()
    return {
        "cards": count,
        "megabytes": path.stat().st_size / 1e6,
        "load_ms": opened,
        "decided": decided,
        "in_two_batches": in_batches,
        "views_ms": {name: round(value, 1) for name, value in chosen.items()},
        "batches_ms": batches,
        "focus_ms": focus,
        "kept_after_reload": before == after,
        "step_ms": {"median": float(np.median(took)), "p99": float(np.quantile(took, 0.99)), "max": max(took)},
        "estimate_ms": estimated,
        "longest_task_ms": max(tasks, default=None),  # none is longer than 50 ms
        "load_decisions": loaded,
        "steps_over_limit": sum(value > LIMIT_MS for value in took),
    }


def measure(settings: Settings) -> dict[str, Any]:
    pixels = data.cifar10("train").pixels
    run = make_run(settings.examples, settings.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = run.report(Path(folder) / "report.html", images=lambda i: pixels[int(i)], top=settings.cards)[0]
        return examine(path, settings.cards)


PAGE = Experiment(name="page", settings=Settings, run=measure, needs=FROZEN)
