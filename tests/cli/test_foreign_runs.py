"""Runs, settings and folders from somebody else, looked at by real commands: none of their code is run, and nothing
that they point at is read unasked.
"""

import base64
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from tests.cli.runs import bare, invoke, read_output, read_refusal, table, write_run

TRAP = "import pathlib\npathlib.Path(__file__).with_suffix('.was-run').write_text('')\nraise SystemExit(9)\n"


@pytest.fixture
def installed(tmp_path):
    """The command as pip installs it: a script in a folder of its own, so that Python itself adds nothing of ours."""
    script = tmp_path / "bin" / "sgoif"
    script.parent.mkdir()
    script.write_text("from sgoif.cli.main import app\napp()\n")

    def call(*args, cwd):
        words = [sys.executable, str(script), *map(str, args)]
        return subprocess.run(words, capture_output=True, text=True, env=bare(), cwd=cwd, timeout=120)

    return call


@pytest.fixture
def run(tmp_path, monkeypatch):
    """In the folder from which commands are called."""
    monkeypatch.chdir(tmp_path)
    ids = [f"cat/{i}.png" for i in range(12)]
    return write_run("run", table([0.9] * 6 + [0.1] * 6, [0] * 12, [1] * 12, ids=ids), names=["cat", "dog"])


@pytest.fixture
def photos(tmp_path):
    """Twelve pictures of different colours, in a folder that is nobody's business."""
    folder = tmp_path / "private" / "cat"
    folder.mkdir(parents=True)
    for i in range(12):
        Image.new("RGB", (80, 80), (20 * i, 7, 99)).save(folder / f"{i}.png")
    return folder.parent


def pictures_in(page):
    return [text for text in re.findall(r"[A-Za-z0-9+/=]{200,}", page.read_text()) if _is_picture(text)]


def _is_picture(text):
    try:
        return base64.b64decode(text)[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xdb")
    except ValueError:
        return False


@pytest.mark.parametrize("option", [("--images", "photos"), ("--images", "trusted_pictures:find")])
def test_a_module_lying_in_the_current_folder_does_not_take_an_installed_ones_place(
    installed, run, photos, tmp_path, option
):
    """Before: with --images the current folder came first on the path, and the template engine was taken from there."""
    here = tmp_path / "download"
    shutil.copytree(photos, here / "photos")
    for name in ("jinja2", "PIL", "numpy", "duckdb", "typing_extensions"):
        (here / f"{name}.py").write_text(TRAP)
    (here / "trusted_pictures.py").write_text("def find(id):\n    return 'photos/' + id\n")
    done = installed("report", tmp_path / run, "--out", "page.html", *option, cwd=here)
    assert not list(here.glob("*.was-run"))
    assert done.returncode == 0, done.stderr
    assert pictures_in(here / "page.html")


def test_a_model_from_the_current_folder_does_not_bring_its_neighbours(installed, tmp_path):
    (tmp_path / "mynet.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 2)\n")
    for name in ("numpy", "rich", "random"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    asked = ("--model", "mynet:make", "--input", "4", "--classes", 2, "--batch", 8, "--blocks", 2, "--json")
    done = installed("bench", *asked, cwd=tmp_path)
    assert not list(tmp_path.glob("*.was-run"))
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr


def test_settings_of_a_stranger_do_not_choose_what_code_is_run(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos / "cat", photos / "dog")
    (tmp_path / "evil.py").write_text(TRAP)
    (tmp_path / "scan.yaml").write_text(f'data: "{photos}"\nbackbone: "evil:factory"\n')
    arguments = ("scan", "--config", "scan.yaml", "--out", "again")
    assert "If you trust it, add --backbone evil:factory." in read_refusal(*arguments)
    assert not list(tmp_path.glob("*.was-run"))
    invoke(*arguments, "--backbone", "evil:factory")
    assert list(tmp_path.glob("*.was-run"))  # now it was asked for


def test_pictures_that_a_run_points_at_are_shown_when_asked_for_alone(run, photos, tmp_path):
    """Before: the page of a run with `data:` in its settings held pictures of that folder, whoever had written it."""
    (tmp_path / "run" / "scan.yaml").write_text(f'data: "{photos}"\n')
    said = " ".join(read_output("report", run, "--out", "page.html").split())
    assert pictures_in(tmp_path / "page.html") == []
    assert f"--images run for those in {photos}" in said
    done = invoke("report", run, "--out", "page.html", "--images", "run")
    assert done.exit_code == 0 and len(pictures_in(tmp_path / "page.html")) == 12, done.stderr
    assert f"Examples come from {photos}, as the run says." in " ".join(done.stderr.split())


@pytest.mark.parametrize("data", ["{url}/photos", "{url}/photos.csv", "evil:code.csv", "gone.csv", "secret.txt"])
def test_a_run_cannot_have_addresses_opened_code_imported_or_anything_read(run, tmp_path, data):
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "evil.py").write_text(TRAP)
    (tmp_path / "secret.txt").write_text("id,text\ncat/0.png,secret\n")
    named = data.format(url=f"http://127.0.0.1:{server.server_port}")
    (tmp_path / "run" / "scan.yaml").write_text(f"data: {json.dumps(named)}\n")
    try:
        read_output("report", run, "--out", "page.html")
        said = read_refusal("report", run, "--out", "other.html", "--images", "run")
    finally:
        server.shutdown()
    assert "no folder or table here" in said and not asked and not list(tmp_path.glob("*.was-run"))
    assert not (tmp_path / "other.html").exists() and "id,text" not in (tmp_path / "page.html").read_text()


def test_an_id_that_leads_out_of_the_folder_is_not_read(photos, tmp_path):
    ids = [f"../private/cat/{i}.png" for i in range(6)] + [str(photos / "cat" / f"{i}.png") for i in range(6)]
    foreign = write_run(tmp_path / "foreign", table([0.9] * 12, [0] * 12, [1] * 12, ids=ids), names=["cat", "dog"])
    (tmp_path / "mine").mkdir()
    read_output("report", foreign, "--out", tmp_path / "page.html", "--images", tmp_path / "mine")
    assert pictures_in(tmp_path / "page.html") == []


@pytest.mark.usefixtures("quick_heads")
def test_progress_is_seen_where_output_is_redirected(photos, tmp_path):
    shutil.copytree(photos / "cat", photos / "dog")
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32))
    done = invoke("scan", photos, "--features", tmp_path / "rows.npy", "--out", tmp_path / "scanned")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"^fitting: 1 of \d+, \d+ s$", done.stderr, re.M)
    assert re.search(r"^checking the data: 1 of 1, \d+ s$", done.stderr, re.M)
    assert "by position: row 0 is 'cat/0.png', the last row is 'dog/9.png'" in done.stdout


def test_class_names_that_are_numbers_are_written_out(tmp_path):
    run = write_run(tmp_path / "run", table([0.9] * 6 + [0.1] * 6, [0] * 12, [1] * 12), names=[False, 7])
    read_output("export", run, "--to", "cleanlab", "--out", tmp_path / "out.csv")
    assert "False" in (tmp_path / "out.csv").read_text()
