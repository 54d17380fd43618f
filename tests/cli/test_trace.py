"""``sgoif trace``: the quantities of Algorithm 1 at each refresh, as the monitor had them."""

import pytest

import sgoif
from tests.cli.runs import answer, noisy, read_output, read_refusal, write_run
from tests.training.loops import arrays, data, fresh, train, watch


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = str(tmp_path_factory.mktemp("trace") / "run")
    train_set, holdout = data(apart=1.0)
    model = fresh()
    method = sgoif.Method.paper(subspace=4, refine_below=1.0, refine_if="low", replace_every=2)
    monitor = watch(model, holdout, method=method, out=place)
    train(model, train_set, monitor, epochs=5)
    monitor.close()
    return place


def test_a_row_per_refresh_has_the_means_over_anchors(run):
    table = arrays(sgoif.load(run).anchors())
    rows = answer("trace", run)["refreshes"]
    assert [row["t"] for row in rows] == sorted(set(table["refresh_step"].tolist()))
    at = table["refresh_step"] == rows[-1]["t"]
    for symbol, name in {"r_v": "residual", "c_v": "confidence", "beta": "beta", "Gamma": "gamma"}.items():
        assert rows[-1][symbol] == pytest.approx(table[name][at].mean()), symbol
    assert rows[-1]["E_proj"] == pytest.approx(1 - table["coverage"][at].mean())
    assert rows[-1]["refined"] == table["refinements"][at].sum() > 0
    assert rows[-1]["replaced"] == table["replacements"][at].sum() > 0
    assert rows[-1]["E_lin"] > 0 and rows[-1]["lambda_min"] < 1


def test_one_anchor_and_the_last_refreshes(run):
    table = arrays(sgoif.load(run).anchors())
    (row,) = answer("trace", run, "--anchor", "2", "--last", "1")["refreshes"]
    at = (table["refresh_step"] == row["t"]) & (table["anchor"] == 2)
    assert row["tau"] == pytest.approx(table["tau"][at].item())
    assert "no anchor 9; its anchors are 0 to 3" in read_refusal("trace", run, "--anchor", "9")


def test_a_person_reads_a_table_with_the_symbols(run):
    lines = read_output("trace", run).splitlines()
    header = next(line for line in lines if line.lstrip().startswith("t "))
    assert header.split() == [
        *("t", "g_v", "r_v", "tau", "c_v", "beta", "Gamma", "E_curv", "E_lin", "E_proj", "lambda_min"),
        *("refined", "replaced", "reset"),
    ]


def test_a_run_without_anchors_says_so(tmp_path):
    assert "has no table of anchors" in read_refusal("trace", write_run(tmp_path / "run", noisy()))
