"""The notebook's code runs from top to bottom on real pictures, with fewer of them; so do programs for frameworks."""

import ast
import json
import runpy
import shlex
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import sgoif
from benchmarks.modalities import load_example
from tests.cli.runs import invoke

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
SIZE = 600


def code_cells():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_command(line):
    """What ``!sgoif ...`` does in a notebook."""
    program, *arguments = shlex.split(line)
    assert program == "sgoif"
    done = invoke(*arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def run_cell(source, names):
    """Run one cell; gives the value of its last line, which a notebook would show."""
    if source.startswith("!"):
        return run_command(source[1:])
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)


@pytest.mark.data
@pytest.mark.usefixtures("weak_models_judge", "narrow_networks")
def test_the_notebook_runs_and_its_decisions_reach_the_second_training(tmp_path, monkeypatch, data_root, capsys):
    monkeypatch.chdir(tmp_path)  # the notebook goes elsewhere; this brings us back
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SGOIF_DATA", str(data_root))
    monkeypatch.setenv("SGOIF_EXAMPLE_SIZE", str(SIZE))
    names = {"__name__": "__main__"}
    shown = [run_cell(source, names) for source in code_cells()]

    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert sum("wrong labels, an estimate" in page for page in pages) == 1
    assert sum(page.count("<img") == 12 for page in pages) == 1
    manifest = pq.read_table(next(tmp_path.rglob("manifest.parquet"))).to_pydict()
    assert len(manifest["id"]) == SIZE
    decided = {
        i: label
        for i, label, action in zip(*(manifest[key] for key in ("id", "label", "action")))
        if action == "relabel"
    }
    assert decided
    trained = names["second"].table
    assert {i: g for i, g in zip(trained["id"].tolist(), trained["given_label"].tolist()) if i in decided} == decided
    assert "before" in capsys.readouterr().out


def test_the_stored_notebook_is_executed_small_and_names_no_machine():
    text = NOTEBOOK.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= 8
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    assert len(text) < 1_500_000
    assert not [word for word in ("/tmp/", "/home/", "/root/", "/work/", "\\u001b") if word in text]
    assert not any("execution" in cell["metadata"] for cell in cells)


@pytest.mark.data
@pytest.mark.usefixtures("narrow_networks")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("program", ["lightning_cifar10", "transformers_vit", "accelerate_cifar10"])
def test_a_program_for_a_framework_runs_as_printed(program, tmp_path, monkeypatch, data_root, capsys):
    import tests.integrations.torchvision_operators  # noqa: F401

    framework = program.partition("_")[0]
    pytest.importorskip(framework)
    if framework == "accelerate":
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # what other tests left in this process
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGOIF_DATA", str(data_root))
    monkeypatch.setenv("SGOIF_EXAMPLE_SIZE", "200")
    runpy.run_path(str(ROOT / "examples" / f"{program}.py"), run_name="__main__")
    assert "of the first 10 are wrong" in capsys.readouterr().out
    assert len(sgoif.load(f"runs/{framework}").table["id"]) == 200


def test_wrong_labels_of_a_table_are_found_while_an_mlp_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = load_example("table_mlp")
    found = example.main(example.Settings(table="wine", noise="nearest"), out="runs/table")
    assert found["sgoif"]["ap"] > 0.7  # chance is 0.05
    run = sgoif.load("runs/table")
    assert run.info["counters"]["faults"] == 0
    assert 100 < len(run.table["id"]) < 150
