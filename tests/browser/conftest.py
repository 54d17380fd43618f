"""A real browser for pages: Chromium of this machine, headless, with no way to the network."""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
import tarfile

import numpy as np
import pytest
from PIL import Image

from sgoif.evidence import LIKENESS_COLUMNS
from sgoif.report import make
from sgoif.run import load
from tests.cli.runs import NAMES, held_out, table, write_run

FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"


def state_of(page):
    """What a failed test wants to know of a page: where it is, and what is decided and kept."""
    return page.evaluate(
        """() => ({ address: location.hash, ...document.body.dataset, drawn: document.querySelectorAll(".card").length,
            decided: [...sgoif.decided], kept: Object.keys(localStorage), scrolled: scrollY,
            said: document.getElementById("message").textContent,
            focus: document.activeElement.outerHTML.slice(0, 100) })"""
    )


def reload(page):
    """Load a page anew; the browser learns of its address after the page does, and loads what it knows."""
    page.evaluate(FRAME)
    page.reload()
    page.evaluate(FRAME)


def make_report(run, out, **options):
    return make.make_report(run, out, make.ReportSettings(**options))[0]


def press(page, *keys):
    """Press one key after another."""
    for key in keys:
        page.keyboard.press(key)


def downloaded(page, folder, button="#download"):
    with page.expect_download() as waiting:
        page.click(button)
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def rows_of(path):
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def decisions(page):
    return dict(page.evaluate("[...sgoif.decided].map(([i, value]) => [i, value.decision])"))


def cards_of(page):
    return page.evaluate("sgoif.document.cards")


def width_of(page):
    return page.evaluate("document.documentElement.scrollWidth")


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="browser test: playwright is not installed")
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("browser test: this machine has no Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Opens a file in a browser profile of its own; what the page complains of, or asks the network for, fails."""
    contexts, trouble = [], []

    def opened(path, at="cards", *, profile=None, width=1280, height=1400, scheme="light", **options):
        context = profile or chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True, **options
        )
        if profile is None:
            contexts.append(context)
            context.on("request", lambda r: r.url.startswith("http") and trouble.append(f"asked for {r.url}"))
        page = context.new_page()
        page.set_default_timeout(8000)
        page.on("console", lambda m: m.type in ("error", "warning") and trouble.append(m.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{path.as_uri() if hasattr(path, 'as_uri') else path}#{at}")
        page.evaluate(FRAME)  # a browser may drop keys that come before it has drawn anything
        if at == "cards":  # only those in sight are drawn, in the next frame
            page.wait_for_selector("#grid .card, #nothing:not([hidden])")
            page.evaluate("document.querySelector('details.filters').open = true")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not trouble, trouble


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Pictures of 60 training and 60 held-out examples, each of one colour."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name in [f"{kind}/{i:03d}.png" for kind in ("img", "held") for i in range(60)]:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 48), tuple(int(c) for c in rng.integers(0, 255, 3))).save(place)
    return folder


def colour(ident):
    """A picture of one colour for any example."""
    value = sum(str(ident).encode()) * 37
    return np.full((32, 32, 3), (value % 256, value // 3 % 256, value // 7 % 256), np.uint8)


SHARES = {"": 0.98, "_2": 0.01, "_3": 0.01}  # of p_mislabeled, by suggestion


@pytest.fixture(scope="session")
def alike(tmp_path_factory):
    """A run of :func:`write_alike`; nothing is written into it, so that all tests read the same one."""
    return load(write_alike(tmp_path_factory.mktemp("alike") / "run"))


@pytest.fixture(scope="session")
def alike_report(alike, tmp_path_factory):
    """Its page, with pictures."""
    return alike.report(tmp_path_factory.mktemp("alike_report") / "report.html", images=colour, top=60)[0]


def write_alike(folder, *, num_wrong=60, first_share=None):
    """A run of four classes that knows which examples are alike; the first ones are labelled as the class after theirs.

    Every third of these looks like a class that the model does not suggest.

    Args:
        folder: of the run.
        num_wrong: labels that are wrong; as many others follow, and 300 that are surely right.
        first_share: of p_mislabeled, by wrong label, for the first suggestion; the same for all by default.
    """
    rng = np.random.default_rng(0)
    number, is_wrong = np.arange(2 * num_wrong), np.arange(2 * num_wrong) < num_wrong
    true = number % 4
    given = np.where(is_wrong, (true + 1) % 4, true)
    looks = np.where(is_wrong & (number % 3 == 0), (true + 2) % 4, true)
    base = rng.integers(-(2**62), 2**62, (4, 4))
    words = base[looks] ^ (1 << rng.integers(0, 60, (len(number), 4)))
    p = np.concatenate([np.linspace(0.99, 0.92, num_wrong), np.linspace(0.2, 0.001, num_wrong)])
    others = {f"suggested_label_{rank}": (true + rank) % 4 for rank in (2, 3)}
    likeness = {name: words[:, i] for i, name in enumerate(LIKENESS_COLUMNS)}
    # 300 right examples besides, so that a wrong label's neighbours are mostly right
    more = np.arange(300) % 4
    near = base[more] ^ (1 << rng.integers(0, 60, (300, 4)))
    shares = {tail: np.full(len(number), share) for tail, share in SHARES.items()}
    if first_share is not None:
        shares[""][:num_wrong] = first_share
    examples = table(
        np.concatenate([p, np.full(300, 0.001)]),
        np.concatenate([given, more]),
        np.concatenate([true, (more + 1) % 4]),
        p_given=np.full(len(number) + 300, 0.1),
        **{f"p_suggested{tail}": np.concatenate([share * p, np.zeros(300)]) for tail, share in shares.items()},
        **{name: np.concatenate([values, (more + 2) % 4]) for name, values in others.items()},
        **{name: np.concatenate([values, near[:, i]]) for i, (name, values) in enumerate(likeness.items())},
    )
    facts = {"expected_errors": float(num_wrong), "transition": (np.eye(4) * 0.8 + 0.05).tolist(), "trusted": True}
    return write_run(folder, examples, holdout=held_out(trusted=True), names=NAMES, **facts)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run of 60 examples of four classes: the first 30 suspicious, in falling order; nothing is written into it."""
    count = 60
    given = np.arange(count) % 4
    p = np.concatenate([np.linspace(0.97, 0.5, 30), np.linspace(0.3, 0.001, 30)])
    examples = table(p, given, (given + 1) % 4, suggested_label_2=(given + 2) % 4, suggested_label_3=(given + 3) % 4)
    transition = (np.eye(4) * 0.8 + 0.05).tolist()
    facts = {"expected_errors": float(p.sum()), "transition": transition, "overhead": 0.04, "trusted": False}
    return load(write_run(tmp_path_factory.mktemp("run") / "run", examples, holdout=held_out(), names=NAMES, **facts))


@pytest.fixture
def own_run(run, tmp_path):
    """A copy for commands that write into the run: plans of reviewers, samples to check."""
    return load(shutil.copytree(run.url, tmp_path / "run"))


@pytest.fixture(scope="session")
def report(run, pictures, tmp_path_factory):
    """The page of the run with pictures."""
    return make_report(run, tmp_path_factory.mktemp("report") / "report.html", images=pictures, top=60)


@pytest.fixture(scope="session")
def bare_report(run, tmp_path_factory):
    """The page of the run without pictures."""
    return make_report(run, tmp_path_factory.mktemp("bare_report") / "report.html", top=60)


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The source of axe-core, fetched by npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core: this machine has no npm")
    folder = tmp_path_factory.mktemp("axe-core")
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([npm, "pack", "axe-core"], cwd=folder, capture_output=True, timeout=120)
    packed = next(iter(folder.glob("axe-core-*.tgz")), None)
    if packed is None:
        pytest.skip("axe-core: npm cannot fetch it")
    with tarfile.open(packed) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()
