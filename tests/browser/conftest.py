"""A real browser for pages: Chromium of this machine, headless, with no way to the network."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image

from sgoif.run import load
from tests.cli.runs import held_out, table, write_run

NAMES = ["cat", "dog", "bird", "fox"]


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

    def opened(path, *, profile=None, width=1280, height=1400, scheme="light"):
        context = profile or chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        if profile is None:
            contexts.append(context)
            context.on("request", lambda r: r.url.startswith("http") and trouble.append(f"asked for {r.url}"))
        page = context.new_page()
        page.on("console", lambda m: m.type in ("error", "warning") and trouble.append(m.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(path.as_uri() if hasattr(path, "as_uri") else str(path))
        page.locator("#review").evaluate(  # only cards in sight are drawn, in the next frame
            "part => (part.scrollIntoView(), new Promise(done => requestAnimationFrame(() => setTimeout(done, 50))))"
        )
        page.wait_for_selector("#grid .card, #nothing:not([hidden])")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not trouble, trouble


@pytest.fixture
def pictures(tmp_path):
    """Pictures of 60 training and 60 held-out examples, each of one colour."""
    rng = np.random.default_rng(0)
    for name in [f"{kind}/{i:03d}.png" for kind in ("img", "held") for i in range(60)]:
        place = tmp_path / "photos" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 48), tuple(int(c) for c in rng.integers(0, 255, 3))).save(place)
    return tmp_path / "photos"


@pytest.fixture
def run(tmp_path):
    """A run of 60 examples of four classes: the first 30 suspicious, in falling order."""
    count = 60
    given = np.arange(count) % 4
    p = np.concatenate([np.linspace(0.97, 0.5, 30), np.linspace(0.3, 0.001, 30)])
    examples = table(p, given, (given + 1) % 4, suggested_label_2=(given + 2) % 4, suggested_label_3=(given + 3) % 4)
    transition = (np.eye(4) * 0.8 + 0.05).tolist()
    facts = {"expected_errors": float(p.sum()), "transition": transition, "overhead": 0.04, "trusted": False}
    url = write_run(tmp_path / "run", examples, holdout=held_out(), names=NAMES, **facts)
    return load(url)
