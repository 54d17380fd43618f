"""Copies under two labels and outliers on the page: decided by keys, undone, and applied like any other decision."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow.parquet as pq
import pytest

from sgoif.run import load
from tests.browser.conftest import (
    colour,
    decisions,
    downloaded,
    make_report,
    press,
    reload,
    rows_of,
    width_of,
)
from tests.cli.runs import answer, document_of
from tests.report.test_queues import write_queued

WORDS = {
    "bank": "account card transfer balance loan money pay branch",
    "food": "cook pasta recipe dinner cheese oven salt soup",
    "music": "play song album guitar singer loud radio tune",
    "travel": "flight hotel train ticket airport luggage map tour",
}


@pytest.fixture(scope="module")
def scanned(tmp_path_factory):
    """A scan of 245 texts, five of which are copies under another label."""
    folder, rng, names = tmp_path_factory.mktemp("scanned"), np.random.default_rng(0), list(WORDS)
    rows = [
        (f"t{n:03d}", f"{' '.join(rng.choice(WORDS[names[n % 4]].split(), 6))} {n}", names[n % 4]) for n in range(240)
    ]
    rows += [(f"copy{n}", rows[n][1], names[(n + 1) % 4]) for n in range(5)]
    with open(folder / "texts.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text", "label"), *rows])
    answer("scan", folder / "texts.csv", "--out", folder / "run")
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queued")
    return make_report(load(write_queued(folder / "run")), folder / "report.html", images=colour, top=10)


def entries(page):
    """Ids of the examples in sight."""
    return page.locator("#queue .ident").all_inner_texts()


def test_copies_of_a_scan_are_settled_by_keys_and_applied(scanned, tmp_path, open_page):
    out = tmp_path / "report.html"
    answer("report", scanned / "run", "--images", "run", "--out", out, "--top", 8)
    page = open_page(out, "duplicates")
    assert page.locator("#queue .written").count() == 2 and page.locator("#queue-outliers").is_hidden()
    assert "The same text, labelled" in page.locator("#queue h2").inner_text()
    seen = []
    for key in ("1", "2", "k", "l", "r"):
        seen.append(entries(page))
        page.keyboard.press(key)
    assert len({name for pair in seen for name in pair}) == 10
    page.wait_for_function("() => document.getElementById('progress').textContent === 'Decided 5 of 5 pairs.'")
    file = downloaded(page, tmp_path)
    answer("apply", scanned / "run", file, "--out", tmp_path / "manifest.parquet")
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "manifest.parquet").to_pylist()}
    found = [[rows[name]["action"] for name in pair] for pair in seen]
    assert found == [["keep", "relabel"], ["relabel", "keep"], ["keep", "keep"], ["drop", "keep"], ["keep", "drop"]]
    first, second = ([rows[name] for name in pair] for pair in seen[:2])
    assert first[1]["label"] == first[0]["given_label"] and second[0]["label"] == second[1]["given_label"]
    assert all(len(row["content"]) == 16 for row in rows_of(file))

    later = tmp_path / "later.html"
    answer("report", scanned / "run", "--images", "run", "--out", later, "--top", 8, "--decisions", file)
    assert open_page(later, "cards").locator("#queues").is_hidden()  # all pairs are settled


def test_outliers_are_kept_or_dropped_and_outlive_a_reload(path, tmp_path, open_page):
    page = open_page(path, "outliers")
    assert entries(page) == ["img/007.png"]
    assert "There are 5" in page.locator("#progress").inner_text()
    page.keyboard.press("d")
    assert entries(page) == ["img/030.png"]
    page.keyboard.press("k")
    reload(page)
    assert page.locator("#queue .badge-text").inner_text() == "Decided: ✕ drop"
    page.click("#tab-result")
    assert "0 of 3 duplicates, 2 of 2 outliers decided" in page.locator("#done").inner_text()
    rows = {row["id"]: row["decision"] for row in rows_of(downloaded(page, tmp_path, "#download-too"))}
    assert rows == {"img/007.png": "drop", "img/030.png": "keep"}
    page.click("#tab-overview")
    page.locator("#sentence button", has_text="3 copies under two labels").click()
    assert page.locator("#queue .entry").count() == 2


def test_what_is_decided_changes_only_on_request(path, open_page):
    page = open_page(path, "duplicates")
    first = entries(page)
    page.keyboard.press("1")
    assert entries(page) != first
    page.keyboard.press("ArrowLeft")
    assert entries(page) == first and page.locator("#queue .badge-text").count() == 2
    before = decisions(page)
    page.keyboard.press("d")
    assert decisions(page) == before and "2 examples are decided already" in page.locator("#ask").inner_text()
    page.keyboard.press("Escape")
    assert decisions(page) == before
    press(page, "d", "Enter")
    assert sorted(decisions(page).values()) == ["drop", "drop"]
    page.keyboard.press("z")
    assert decisions(page) == before and entries(page) == first
    page.keyboard.press("z")
    assert decisions(page) == {}


def test_a_card_and_an_entry_share_one_decision(path, open_page):
    page = open_page(path, "cards")
    assert page.locator("#queues button:visible").all_inner_texts() == ["Labels", "Duplicates", "Outliers"]
    page.fill("#filter-id", "img/000")
    page.locator("#clear").focus()
    page.keyboard.press("1")  # as class 1, like its copy: nothing is left to decide about the two
    page.wait_for_function("() => sgoif.decided.size === 1")
    page.click("#queue-duplicates")
    page.wait_for_function("() => document.getElementById('progress').textContent === 'Decided 1 of 3 pairs.'")
    assert page.locator("#grid").is_hidden() and page.locator(".filters").is_hidden()
    page.keyboard.press("z")
    assert "among the labels" in page.locator("#message").inner_text() and decisions(page) == {}
    press(page, "u", "g")
    assert page.locator("#grid").is_visible()
    page.keyboard.press("z")
    assert "among the duplicates" in page.locator("#message").inner_text() and decisions(page) == {}


def test_estimates_and_lists_leave_out_other_queues(path, open_page):
    page = open_page(path, "outliers")
    before = page.evaluate("sgoif.estimate()")
    press(page, "d", "d")
    after, numbers = page.evaluate("sgoif.estimate()"), page.evaluate("sgoif.document.queues.outliers.entries.flat()")
    assert before["open"] == 10 and len(decisions(page)) == 2 and max(numbers) >= 10
    assert after["reviewed"] == after["wrong"] == sum(i < 10 for i in numbers)
    assert page.evaluate("sgoif.comingUp().length") == after["open"]


@pytest.mark.parametrize("options", [{"reviewers": ["ann"]}, {"blind": True}, {"ids": ["img/000.png"]}])
def test_only_owners_see_other_queues(tmp_path, open_page, options):
    (path,) = load(write_queued(tmp_path / "run")).report(tmp_path / "r.html", images=colour, top=10, **options)
    data = document_of(path)
    assert not any(queue["entries"] or queue["count"] for queue in data["queues"].values())
    assert not any(data["extras"].values())
    assert open_page(path, "cards").locator("#queues").is_hidden()


def test_two_copies_fit_a_phone(path, open_page):
    page = open_page(path, "duplicates", width=390, height=800)
    assert width_of(page) <= 390
    boxes = [box.bounding_box() for box in page.locator("#queue .large").all()]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    assert page.locator("#queue .sheet-actions button").last.bounding_box()["y"] < 800
