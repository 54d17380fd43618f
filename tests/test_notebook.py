"""The notebook for a hosted runtime runs from top to bottom in a kernel of its own, and is stored as it ran."""

import json
import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"


def texts_of(notebook):
    """What was printed, over all cells."""
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    return "".join(out.get("text", "") for out in outputs)


def numbers(pattern, text):
    return [int(number) for number in re.search(pattern, text).groups()]


def check(notebook):
    """The findings are what the text around them says.

    The bounds are wide: steps as short as these are scored more or less often, as the machine has time for it.
    """
    text = texts_of(notebook)
    assert numbers(r"(\d+) of the first 50 labels are wrong", text)[0] >= 44
    assert numbers(r"(\d+) of the 50 suggestions are the true digit", text)[0] >= 42
    before, after = numbers(r"wrong labels: (\d+) before, (\d+) after", text)
    assert before == 90 and after < 60
    assert numbers(r"(\d+) of the first 90 labels are wrong", text)[0] >= 85


def execute(folder):
    """Run the notebook in a folder, with the package of this checkout."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PATH": programs, "OMP_NUM_THREADS": "1"}
    client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    return client.execute(env=environment)


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    check(execute(tmp_path))
    assert (tmp_path / "report.html").exists() and (tmp_path / "manifest.parquet").exists()


def test_the_stored_notebook_shows_what_it_gave():
    text = NOTEBOOK.read_text()
    check(nbformat.reads(text, as_version=4))
    assert "/root/" not in text and "/home/" not in text and "/tmp/" not in text
    assert len(text) < 300_000 and json.loads(text)["nbformat"] == 4


if __name__ == "__main__":  # stores the notebook as it runs: python -m tests.test_notebook
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        executed = execute(place)
    for cell in executed.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(executed, NOTEBOOK)
