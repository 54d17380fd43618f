"""Every block of code in the documentation runs as it stands: Python after the start page's, commands in order."""

import copy
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

import tests.integrations.torchvision_operators  # noqa: F401 - Lightning imports torchvision where it is
from tests.cli.runs import invoke
from tests.docs.cli_page import SHOWN, write_verdicts
from tests.docs.world import make

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.S | re.M)
TOO_LONG = {  # lines that are shown in other tests or benchmarks
    "sgoif scan photos --out runs/first": "trains networks for minutes: python -m benchmarks run scan",
    "sgoif scan photos --out runs/photos": "the same",
    "docs/clean_a_folder.md": "the whole way on 5,000 pictures: python -m benchmarks run review",
}
ELSEWHERE = {
    "docs/checkpoints.md": "killed and resumed in tests/test_checkpoints.py",
    "docs/index.md": "below, in a folder of its own",
    "docs/start.md": "the fixture `started`, before all other pages",
}
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "docs").rglob("*.md")
    if BLOCK.search(path.read_text()) and str(path.relative_to(ROOT)) not in {*TOO_LONG, *ELSEWHERE}
)


# of the libraries that the pages use; xdist would import some of these categories, and with them torchvision
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="session")
def started(tmp_path_factory):
    """The reader's folder, and the names in Python, after the start page."""
    folder = tmp_path_factory.mktemp("reader")
    names = {"__name__": "__main__", "photos": make(folder)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_page("docs/start.md", names)
    return folder, names


def run_page(page, names):
    """Run a page's blocks, in order."""
    for kind, text in BLOCK.findall((ROOT / page).read_text()):
        if kind == "python":
            exec(compile(text, page, "exec"), names)
        else:
            for line in commands(text):
                if page != "docs/cli.md" or not SHOWN.search(line):  # those run in test_cli_page
                    run_command(line)


def commands(text):
    """Lines that are typed, without their comments; a line that ends with a backslash goes on."""
    typed = re.findall(r"^\$ (.*)$", text.replace("\\\n", " "), re.M)
    return [re.sub(r"\s+# .*$", "", line).strip() for line in typed]


def run_command(line):
    line = re.sub(r"\bRUN\b", "runs/photos", line).replace("s3://bucket/", "bucket/")
    if line in TOO_LONG or not line.startswith("sgoif"):
        return
    if "--filled verify.csv" in line:
        fill_in(Path("verify.csv"))
    if "--verdicts verdicts.csv" in line:
        write_verdicts(shlex.split(line)[2])
    done = invoke(*shlex.split(line)[1:])
    # whether a limit is kept depends on the data; an error in sgoif itself is 3
    expected = (0, 1, 2) if line.startswith("sgoif check") else (0,)
    assert done.exit_code in expected, (line, done.stderr, done.stdout)


def fill_in(path):
    """Do what the page asks a person for."""
    head, *rows = path.read_text().splitlines()
    named = head.split(",").index("given_name")
    path.write_text("\n".join([head, *(row + row.split(",")[named] for row in rows)]) + "\n")


@pytest.mark.usefixtures("quick_heads")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, started, tmp_path, monkeypatch, capsys):
    folder, names = started
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    torch.manual_seed(0)
    model = copy.deepcopy(names["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run_page(page, {**names, "model": model, "optimizer": optimizer})


def test_the_start_page_finds_what_it_says(started):
    issues, spoilt = started[1]["issues"], started[1]["spoilt"]
    right = set(issues["id"].to_pylist()) & set(spoilt.tolist())
    assert len(right) >= 40  # 50; 44 on a busy machine, which scores fewer steps


def blocks_of(page):
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text()) if kind == "python"]


def test_the_six_lines_find_what_the_front_page_says_and_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (six,), names = blocks_of("docs/index.md"), {"__name__": "__main__"}
    exec(compile(six, "docs/index.md", "exec"), {"__name__": "__main__"})
    found = re.fullmatch(r"(\d+) of 90 found\n", capsys.readouterr().out)
    assert int(found[1]) >= 85  # 88 on the machine that wrote the page
    blocks = blocks_of("README.md")
    assert six in blocks and len(blocks) > 1
    for text in blocks:
        if text != six:
            exec(compile(text, "README.md", "exec"), names)
