"""The whole way: pages for two people, their decisions, one manifest, and a second page for disagreements."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

from sgoif.review.plan import read_plans
from tests.browser.conftest import cards_of, downloaded, press, rows_of
from tests.cli.runs import NAMES, answer, held_out, table, write_run


def decide_on_all(page, key_of):
    """Press a key on every card, as a person would who knows what each is."""
    cards = cards_of(page)
    for _ in cards["id"]:
        i = int(page.locator(".card.current").get_attribute("data-card"))
        page.keyboard.press(key_of(cards["id"][i], cards["suggested"][i]))


def test_two_reviewers_one_manifest_and_a_second_page(pictures, tmp_path, open_page):
    given, p = np.arange(60) % 4, np.concatenate([np.linspace(0.97, 0.6, 40), np.linspace(0.2, 0.001, 20)])
    examples = table(p, given, (given + 1) % 4, suggested_label_2=(given + 2) % 4, suggested_label_3=(given + 3) % 4)
    transition = (np.eye(4) * 0.8 + 0.05).tolist()
    held = held_out(trusted=True)
    url = write_run(tmp_path / "run", examples, holdout=held, names=NAMES, transition=transition)
    pages = answer(
        *("report", url, "--out", tmp_path / "r.html", "--images", pictures, "--top", "40"),
        *("--reviewers", "ann,bo", "--overlap", "20%", "--checks", "20%"),
    )["pages"]
    plan = read_plans(url)[0]
    shared = {card.id for card in plan.cards["ann"]} & {card.id for card in plan.cards["bo"]}
    shared &= {card.id for card in plan.of_kind("flagged").values()}
    assert len(shared) == 8

    files = []
    for page, name in zip(pages, ("ann", "bo")):
        kinds = {plan.token(card): card for card in plan.cards[name]}

        def key_of(token, suggested, kinds=kinds, name=name):
            card = kinds[token]
            if card.kind == "canary":
                return str(suggested.index(card.truth) + 1)
            if card.kind == "random":
                return "k"
            return "k" if name == "bo" and card.id in shared else "1"

        opened = open_page(f"file://{page['page']}")
        assert "img/" not in opened.locator("#grid").inner_text()  # an id may tell what a card is there for
        decide_on_all(opened, key_of)
        files.append(downloaded(opened, tmp_path))
        assert len(rows_of(files[-1])) == len(plan.cards[name])

    out = tmp_path / "manifest.parquet"
    second = tmp_path / "second.html"
    found = answer("apply", url, *files, "--out", out, "--disagreements", second, "--images", pictures)
    assert len(found["disagreements"]) == 8 and found["second_page"] == str(second)
    assert all(score["num_right"] == score["num_shown"] > 4 for score in found["canaries"].values())
    manifest = pq.read_table(out).to_pylist()
    actions = {row["id"]: row["action"] for row in manifest}
    assert len(manifest) == 60 and not any(ident.startswith("held/") for ident in actions)
    assert sum(action == "relabel" for action in actions.values()) == 32
    assert {ident for ident, action in actions.items() if action == "unsure"} == shared
    assert all(row["label"] == (row["given_label"] + 1) % 4 for row in manifest if row["action"] == "relabel")

    last = open_page(second)
    assert set(last.locator(".card .id").all_inner_texts()) == shared
    for _ in shared:
        last.keyboard.press("1")
    final = downloaded(last, tmp_path / "again")
    assert not answer("apply", url, *files, final, "--out", out)["disagreements"]
    assert sum(row["action"] == "relabel" for row in pq.read_table(out).to_pylist()) == 40


def test_a_hold_out_is_verified_on_the_page(tmp_path, open_page):
    given = np.arange(40) % 4
    url = write_run(tmp_path / "run", table(np.full(40, 0.1), given, (given + 1) % 4), holdout=held_out())
    page = tmp_path / "verify.html"
    assert answer("holdout", url, "--size", 12, "--page", page)["written"] == 12
    opened = open_page(page)
    press(opened, "k", "1", "u")
    file = downloaded(opened, tmp_path)
    merged = answer("holdout", url, "--filled", file, "--verified", tmp_path / "verified.csv")
    assert merged["total"] == 2
    rows = rows_of(file)
    labels = {row["id"]: row["label"] for row in rows_of(tmp_path / "verified.csv")}
    for row in rows[:2]:
        assert labels[row["id"]] == (row["label_name"] or row["given_name"])
