"""The YAML that repeats a scan: what is written is read back, and what people write is understood."""

import os
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgoif.cli.scan import ScanSettings, read_settings, settings_text
from sgoif.errors import SgoifError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("settings") / "scan.yaml")


@given(
    st.text(min_size=1).filter(lambda text: "\x00" not in text and text.isprintable()),
    st.none() | st.text(),
    st.integers(0, 2**40),
)
def test_settings_are_read_back_as_written(path, data, backbone, seed):
    settings = ScanSettings(data=data, backbone=backbone, seed=seed)
    with open(path, "w", encoding="utf-8") as file:
        file.write(settings_text(settings, "0.1"))
    found = read_settings(path)
    expected = data if "://" in data else os.path.abspath(data)
    assert found == asdict(ScanSettings(data=expected, backbone=backbone, seed=seed))


def test_what_is_written_is_yaml(path):
    yaml = pytest.importorskip("yaml")
    settings = ScanSettings(data="/a: b #c", label=["ann", "b: o"], text="#", backbone="m:f", seed=3)
    found = yaml.safe_load(settings_text(settings, "0.1"))
    assert found == asdict(settings) and found["label"] == ["ann", "b: o"]
    with open(path, "w", encoding="utf-8") as file:
        file.write(settings_text(settings, "0.1"))
    assert read_settings(path) == asdict(settings)


def test_settings_written_by_hand_are_understood(path):
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            "---\n# mine\n\ndata: photos/2024 set  # the new ones\nbackbone: 'it''s:f'\nweights: ~\nseed: 3 # three\n"
        )
    assert read_settings(path) == {"data": "photos/2024 set", "backbone": "it's:f", "weights": None, "seed": 3}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sed: 3", "line 2"),
        ("nonsense", "must be `name: value`"),
        ("seed: many", "must be a whole number"),
        ("seed: true", "must be a whole number"),
        ("seed:", "must be a whole number"),
        ("data: [1, 2]", "must be text"),
        ("task:", "must be text"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(path, line, said):
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"# mine\n{line}\n")
    with pytest.raises(SgoifError, match=said):
        read_settings(path)
