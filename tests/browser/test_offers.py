"""Batches that grow and shrink by what was decided; what is in sight stays."""

from __future__ import annotations

import numpy as np
import pytest

from sgoif.findings.keys import LEAST_SHARE, ClassKeys, choose_least_share
from sgoif.run import load
from tests.browser.conftest import cards_of, colour, decisions, downloaded, make_report, reload, write_alike

NUM_WRONG = 150


@pytest.fixture(scope="module")
def doubted(tmp_path_factory):
    """A run with 150 wrong labels. The neighbours agree with about 90 suggestions, the model is sure of few of them."""
    agreed = np.flatnonzero(np.arange(NUM_WRONG) % 3 != 0)
    share = np.full(NUM_WRONG, 0.78)
    share[agreed[:20]] = 0.98
    return load(write_alike(tmp_path_factory.mktemp("doubted") / "run", num_wrong=NUM_WRONG, first_share=share))


@pytest.fixture(scope="module")
def doubted_report(doubted, tmp_path_factory):
    return make_report(doubted, tmp_path_factory.mktemp("page") / "report.html", images=colour, top=NUM_WRONG)


@pytest.fixture
def opened(doubted_report, open_page):
    return lambda at: open_page(doubted_report, at)


def agreeing(page, *, offered):
    """Cards with which the neighbours agree, in batches from the start or not; the surest first."""
    cards = cards_of(page)
    share = [shares[0] if agrees else None for shares, agrees in zip(cards["shares"], cards["agrees"])]
    found = [i for i, known in enumerate(share) if known is not None and (known >= LEAST_SHARE) == offered]
    return sorted(found, key=lambda i: -share[i])


def write_relabelled(page, chosen, path, *, wrong=()):
    """A file of decisions in which the first suggestion is right, or in some cases the given label."""
    cards = cards_of(page)
    lines = ["id,given_label,decision,label"]
    for i in chosen:
        answer = "keep," if i in wrong else f"relabel,{cards['suggested'][i][0]}"
        lines.append(f"{cards['id'][i]},{cards['given'][i]},{answer}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tiles_of(page):
    return [int(i) for i in page.locator(".tile").evaluate_all("tiles => tiles.map(tile => tile.dataset.card)")]


def test_the_page_chooses_the_share_as_python_does(alike_report, open_page):
    page = open_page(alike_report, "batches")
    rng = np.random.default_rng(5)
    cases, expected = [], []
    for number in range(400):
        count = int(rng.integers(0, 160))
        share = rng.uniform(0.5, 1, count).round(2 if number % 2 else 3)  # with ties, and without
        right = rng.random(count) < rng.choice([0.8, 0.93, 0.97, 1.0]) * np.minimum(share + 0.3, 1)
        cases.append([[float(s), bool(r)] for s, r in zip(share, right)])
        labels, nothing = np.ones((count, 3), np.int64), np.zeros(count, np.int64)
        keys = ClassKeys(labels, np.tile(share[:, None], 3), nothing, nothing, share, share >= LEAST_SHARE)
        expected.append(choose_least_share(keys, np.where(right, 1, 0)))
    assert page.evaluate("cases => cases.map(sgoif.chooseLeastShare)", cases) == expected
    kinds = np.sign(np.array(expected) - LEAST_SHARE)
    assert min((kinds == sign).sum() for sign in (-1, 0, 1)) > 20  # lowered, left alone and raised
    assert expected.count(1.01) > 0


def test_batches_grow_by_decisions_and_the_one_in_sight_stays(opened, tmp_path):
    page = opened("batches")
    sure, doubtful = agreeing(page, offered=True), agreeing(page, offered=False)
    assert len(sure) > 12 and len(doubtful) > 60
    rest = len(doubtful) - 52
    tiles = tiles_of(page)
    assert tiles and set(tiles) <= set(sure)
    page.keyboard.press("x")
    page.set_input_files("#load", write_relabelled(page, doubtful[-52:], tmp_path / "some.csv", wrong=doubtful[-9:-8]))
    page.wait_for_function("() => sgoif.leastShare() < 0.85")
    assert tiles_of(page) == tiles and page.locator(".tile.excepted").count() == 1
    said = f"{rest} more cards share an answer that has been right for 98% of those you decided."
    assert page.locator("#message").inner_text() == said
    assert f"{len(sure) + rest - len(tiles)} more in later batches" in page.locator("#batch-left").inner_text()
    assert page.locator("#batch-count").inner_text() == str(len(sure) + rest)
    for _ in range(8):
        page.keyboard.press("Enter")
    assert set(doubtful) <= set(decisions(page)) and not tiles_of(page)


def test_batches_shrink_by_decisions_but_not_the_one_in_sight(opened, tmp_path):
    page = opened("batches")
    tiles, sure = tiles_of(page), agreeing(page, offered=True)
    others = [i for i in sure if i not in tiles]
    assert len(others) >= 10
    page.set_input_files("#load", write_relabelled(page, others[:8], tmp_path / "some.csv", wrong=others[:8]))
    page.wait_for_function("() => sgoif.leastShare() > 1")
    assert tiles_of(page) == tiles
    assert "no longer offered in batches" in page.locator("#message").inner_text()
    page.keyboard.press("Enter")
    assert tiles_of(page) == []
    page.keyboard.press("z")  # a batch that is taken back returns whole
    assert tiles_of(page) == tiles


def test_growth_is_told_one_at_a_time_and_undone(opened, tmp_path):
    page = opened("focus")
    doubtful = agreeing(page, offered=False)
    file = write_relabelled(page, doubtful[-49:], tmp_path / "some.csv")
    page.set_input_files("#load", file)
    page.wait_for_function("() => sgoif.decided.size === 49")
    for _ in range(NUM_WRONG):
        if page.evaluate("sgoif.comingUp()[0]") in doubtful[:-49]:
            break
        page.keyboard.press("ArrowRight")
    page.keyboard.press("1")
    page.wait_for_function("() => sgoif.leastShare() < 0.85")
    assert page.locator("#message").inner_text().endswith("B shows them.")
    assert page.locator("#opened").is_visible()  # nothing is taken from under the eyes
    page.keyboard.press("z")
    page.wait_for_function("() => sgoif.leastShare() === 0.85")


def test_earlier_decisions_and_reloads_start_from_the_same_share(doubted, opened, tmp_path, open_page):
    page = opened("cards")
    doubtful = agreeing(page, offered=False)
    page.set_input_files("#load", write_relabelled(page, doubtful[-52:], tmp_path / "some.csv", wrong=doubtful[-9:-7]))
    page.wait_for_function("() => sgoif.leastShare() < 0.85")
    file = downloaded(page, tmp_path)
    reload(page)
    assert page.evaluate("sgoif.leastShare()") < LEAST_SHARE
    later = make_report(doubted, tmp_path / "later.html", images=colour, top=NUM_WRONG, decisions=[file])
    page = open_page(later, "batches")
    past = page.evaluate("sgoif.document.past_keys")
    assert len(past) == 52 and sum(right for _, right in past) == 50
    assert page.evaluate("sgoif.leastShare()") < LEAST_SHARE
    assert tiles_of(page) and int(page.locator("#batch-count").inner_text()) > len(agreeing(page, offered=True))
