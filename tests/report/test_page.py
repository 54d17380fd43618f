"""Pages without a browser: what is in the file, and what is not."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image

from sgoif.errors import SgoifError
from sgoif.report.findings import overview
from sgoif.report.make import ReportSettings, make_report
from sgoif.review.decisions import Decision, write_decisions
from sgoif.review.plan import read_plans
from sgoif.run import load
from tests.cli.runs import NAMES, held_out, invoke, noisy, table, write_run


def document(path):
    return json.loads(path.read_text(encoding="utf-8").split('id="document">')[1].split("</script>")[0])


@pytest.fixture
def run(tmp_path):
    examples = evenly(80, 0.99, 0.001)
    held = held_out(60) | {"p_mislabeled": np.full(60, 0.001), "trusted": np.full(60, True)}
    return load(write_run(tmp_path / "run", examples, holdout=held, transition=(np.eye(4) * 0.9 + 0.025).tolist()))


def evenly(count, first, last, **columns):
    """Examples of four classes in turn, of which each is a little less doubted than the one before it."""
    given = np.arange(count) % 4
    return table(np.linspace(first, last, count), given, (given + 1) % 4, **columns)


def pages_of(run, out, run_url=None, **options):
    return make_report(run, out, ReportSettings(**options), run_url=run_url)


def page(run, tmp_path, **options):
    return pages_of(run, tmp_path / "report.html", **options)[0]


def test_cards_are_the_most_suspicious_labels(run, tmp_path):
    cards = document(page(run, tmp_path, top=10))["cards"]
    assert cards["id"] == [f"img/{i:03d}.png" for i in range(10)]
    assert cards["given"] == [i % 4 for i in range(10)]
    assert cards["suggested"][0] == [1] and cards["p"][0] == pytest.approx(0.99)


def test_the_page_is_one_file_that_asks_for_nothing(run, tmp_path):
    text = page(run, tmp_path).read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src &#39;none&#39;" in policy and "connect-src" not in policy
    assert not re.search(r'(?:src|href)="(?!#)', text.split("<script")[0])
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_embedded_pictures_are_small_and_bare(tmp_path):
    folder = tmp_path / "photos" / "img"
    folder.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x010E] = "GPS 47.1 N: my kitchen"
    rng = np.random.default_rng(0)
    for i in range(8):
        noise = Image.fromarray(rng.integers(0, 255, (900, 1200, 3), dtype=np.uint8))
        noise.save(folder / f"{i:03d}.jpg", exif=exif, quality=85)
    url = write_run(tmp_path / "run", evenly(8, 0.9, 0.6, ids=[f"img/{i:03d}.jpg" for i in range(8)]))
    made = page(load(url), tmp_path, images=tmp_path / "photos")
    assert made.stat().st_size < sum(path.stat().st_size for path in folder.iterdir()) / 2
    assert b"kitchen" not in made.read_bytes()
    assert "8 pictures of the folder" in made.read_text(encoding="utf-8")


def test_pictures_that_cannot_be_shown_are_counted(tmp_path, caplog):
    """Before, the page alone said so, and the command nothing."""
    folder = tmp_path / "photos" / "img"
    folder.mkdir(parents=True)
    for i in range(8):
        Image.new("RGB", (8, 8)).save(folder / f"{i:03d}.png")
    (folder / "003.png").write_bytes(b"no picture")
    url = write_run(tmp_path / "run", evenly(8, 0.9, 0.6))
    assert invoke("report", url, "--images", tmp_path / "photos", "--out", tmp_path / "page.html").exit_code == 0
    assert "1 of 8 pictures" in caplog.text and "could not be shown" in caplog.text


def test_what_was_decided_is_not_asked_again_unless_it_changed(run, tmp_path):
    verdicts = ((0, "keep"), (3, "keep"), (2, "unsure"))  # the second one is labelled 1 by now
    past = [Decision(f"img/00{i}.png", *verdict, reviewer="ann") for i, verdict in enumerate(verdicts)]
    write_decisions(past, tmp_path / "past.csv")
    cards = document(page(run, tmp_path, top=10, decisions=[tmp_path / "past.csv"]))["cards"]
    assert cards["id"][:2] == ["img/001.png", "img/002.png"] and len(cards["id"]) == 10
    assert cards["p"][0] < 1 - 79 / 80 * 0.01  # one label was right after all: the others are doubted less


def test_a_changed_picture_is_asked_about_again(run, tmp_path):
    place = tmp_path / "photos" / "img" / "000.png"
    place.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(place)
    first = document(page(run, tmp_path, top=5, images=tmp_path / "photos"))["cards"]
    past = [Decision("img/000.png", 0, "keep", content=first["content"][0])]
    write_decisions(past, tmp_path / "past.csv")
    again = {"images": tmp_path / "photos", "decisions": [tmp_path / "past.csv"], "top": 5}
    assert "img/000.png" not in document(page(run, tmp_path, **again))["cards"]["id"]
    Image.new("RGB", (8, 8), "blue").save(place)
    assert document(page(run, tmp_path, **again))["cards"]["id"][0] == "img/000.png"


def test_reviewers_get_pages_of_their_own_with_checks_that_look_alike(run, tmp_path):
    pages = pages_of(
        run, tmp_path / "r.html", top=40, reviewers=["ann", "bo"], overlap=0.1, checks=0.2, run_url=run.url
    )
    assert [page.name for page in pages] == ["r-ann.html", "r-bo.html"]
    plan = read_plans(run.url)[0]
    ann, bo = (document(page) for page in pages)
    assert ann["list"] == bo["list"] == plan.list_id and ann["secret"]
    listed = {plan.token(card) for card in plan.of_kind("flagged").values()}
    assert len(set(ann["cards"]["id"]) & set(bo["cards"]["id"]) & listed) == 4
    kinds = [card.kind for card in plan.cards["ann"]]
    assert kinds.count("random") >= 3 and kinds.count("canary") >= 5
    checks = [i for i, kind in enumerate(kinds) if kind != "flagged"]
    cards = ann["cards"]
    lowest = min(p for p, kind in zip(cards["p"], kinds) if kind == "flagged")
    assert all(cards["p"][i] >= lowest - 1e-3 for i in checks)
    assert all(cards["suggested"][i] for i in checks)
    # intervals, confidence, visits and reason of a check would be made up, and tell it from the rest: no card has any
    assert {value for name in ("low", "high", "confidence", "visits") for value in cards[name]} == {None}
    assert set(cards["why"]) == {""}
    assert not any(cards["link"]) and not re.search("canary|img/|held/|holdout", json.dumps(ann))


def test_what_reviewers_decided_is_not_asked_again_either(run, tmp_path):
    options = {"top": 10, "run_url": run.url}
    pages_of(run, tmp_path / "r.html", reviewers=["ann"], **options)
    plan = read_plans(run.url)[0]
    first = next(card for card in plan.cards["ann"] if card.id == "img/000.png")
    kept = Decision(plan.token(first), first.given_label, "keep", reviewer="ann", list_id=plan.list_id)
    write_decisions([kept], tmp_path / "ann.csv")
    cards = document(page(run, tmp_path, decisions=[tmp_path / "ann.csv"], **options))["cards"]
    assert cards["id"] == [f"img/{i:03d}.png" for i in range(1, 11)]


def test_a_run_without_probabilities_has_a_page_too(tmp_path):
    examples = {name: column for name, column in evenly(30, 1, 1).items() if "mislabeled" not in name}
    made = page(load(write_run(tmp_path / "run", examples)), tmp_path)
    cards = document(made)["cards"]
    assert len(cards["id"]) == 30 and cards["p"][0] is None
    assert "no</strong><span>probabilities" in made.read_text(encoding="utf-8")


def test_classes_come_worst_first(tmp_path):
    run = load(write_run(tmp_path / "run", noisy()))
    text = page(run, tmp_path).read_text(encoding="utf-8")
    names = re.findall(r'data-class="\d+"[^>]*><bdi>([^<]+)<', text)
    assert names[0] == "cat" and sorted(names) == sorted(NAMES)
    assert "mislabelled" in text


def test_what_cannot_be_shown_is_refused(run, tmp_path):
    with pytest.raises(SgoifError, match="embed, link, none"):
        page(run, tmp_path, pictures="inline", images=lambda i: None)
    with pytest.raises(SgoifError, match="run on disk"):
        page(run, tmp_path, reviewers=["ann"])


def test_the_top_of_a_page_calls_an_estimate_so_and_shows_warnings(tmp_path):
    known = {"accuracy": 0.8, "num_examples": 200, "chance": 0.1, "majority": 0.1, "skill": 0.8, "is_competent": True}
    noticed = {"positions": "ids were positions in a batch"}
    run = write_run(tmp_path / "run", noisy(), trusted=False, competence=known, warnings=noticed)
    numbers = overview(load(run)).numbers
    (estimate,) = [remark for _, what, remark in numbers if what == "wrong labels, an estimate"]
    assert estimate.endswith("to 25% are possible)")
    assert [remark for value, _, remark in numbers if value == "warning"] == ["ids were positions in a batch"]
