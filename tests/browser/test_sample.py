"""The page of a sample to check: right, wrong or cannot tell, card by card, and back into the run."""

from __future__ import annotations

import json

from tests.browser.conftest import downloaded, press
from tests.cli.runs import answer, invoke


def test_labels_are_checked_on_the_page_and_judged_by_the_command(own_run, pictures, tmp_path, open_page):
    answer("verify", own_run.url, "--page", tmp_path / "check.html", "--images", pictures)
    page = open_page(tmp_path / "check.html")
    # nothing but the example and its label: no probability, no suggestion, no interval, no selection, one order
    text = page.locator("body").inner_text()
    assert "%" not in text and "→" not in text and "interval" not in text
    assert page.locator(".group h3").all_inner_texts() == ["Is each label right?"]
    assert page.locator(".pick:visible").count() == 0 and page.locator("details.filters:visible").count() == 0
    beside = page.evaluate("Object.values(sgoif.document.beside.typical).flat().map(item => item[2])")
    assert not set(beside) & set(page.evaluate("sgoif.document.cards.id"))
    for key in ["d", "1", "x"]:  # keys of a review do nothing here
        page.keyboard.press(key)
    assert page.evaluate("sgoif.decided.size") == 0
    press(page, "n", "u")
    for _ in range(58):
        page.keyboard.press("k")
    page.get_by_text("60 of 60 labels checked.").wait_for()
    verdicts = downloaded(page, tmp_path)
    assert verdicts.name == "verdicts.csv"
    found = answer("verify", own_run.url, "--verdicts", verdicts)
    assert (found["all"]["num_wrong"], found["all"]["num_unsure"], found["all"]["num_checked"]) == (1, 1, 59)
    checked = json.loads(invoke("check", own_run.url, "--max-error-rate", "10%", "--json").stdout)
    assert checked["state"] == "fine"  # all 60 examples were seen


def test_an_opened_card_is_answered_and_the_next_one_follows(own_run, pictures, tmp_path, open_page):
    answer("verify", own_run.url, "--page", tmp_path / "check.html", "--images", pictures)
    page = open_page(tmp_path / "check.html")
    page.locator(".card").first.click()
    assert "1 of 60" in page.locator("#opened").inner_text()
    page.keyboard.press("k")
    opened = page.locator("#opened").inner_text()
    assert "2 of 60" in opened and "looks like" not in opened and "probability" not in opened
    page.keyboard.press("ArrowLeft")
    assert "✓ right" in page.locator("#opened").inner_text()
