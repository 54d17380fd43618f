"""Help that can be read: every text is a sentence about what an option does, and options show no type of Python."""

import re

import pytest
import typer

from sgoif.cli.main import app
from tests.cli.runs import read_output

COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_a_command_is_in_sentences_without_types(name):
    shown = read_output(name, "--help")
    assert f"Usage: sgoif {name}" in shown and "--help" in shown
    assert not re.search("<bool>|<str>|<list|<int|<float|BOOLEAN", shown)
    texts = [param.help for param in COMMANDS[name].params]
    assert texts and [text for text in texts if not re.fullmatch(r"[A-Z].*\.\)?", text, re.S)] == []
