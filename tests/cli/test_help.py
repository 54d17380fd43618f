"""Help that can be read: every text is a sentence that says what an option does, and flags show no type."""

import pytest
import typer

from sgoif.cli.main import app
from tests.cli.runs import invoke

GROUP = typer.main.get_command(app)
VERBS = set(
    [
        "Allow",
        "Assume",
        "Call",
        "Check",
        "Choose",
        "Compare",
        "Decode",
        "Draw",
        "Drop",
        "Embed",
        "Find",
        "Forecast",
        "Give",
        "Hide",
        "Judge",
        "Keep",
        "Let",
        "Load",
        "Make",
        "Measure",
        "Mix",
        "Name",
        "Print",
        "Rank",
        "Read",
        "Relabel",
        "Repeat",
        "Replace",
        "Reserve",
        "Run",
        "Score",
        "Set",
        "Show",
        "Start",
        "Take",
        "Train",
        "Turn",
        "Use",
        "Warn",
        "Work",
        "Write",
    ]
)


@pytest.mark.parametrize("name", sorted(GROUP.commands))
def test_every_text_is_a_sentence_that_begins_with_what_the_option_does(name):
    texts = {param.opts[0]: param.help for param in GROUP.commands[name].params}
    assert texts
    poor = {
        option: text for option, text in texts.items() if text.split()[0] not in VERBS or not text.endswith((".", ")."))
    }
    assert poor == {}


@pytest.mark.parametrize("name", ["", *sorted(GROUP.commands)])
def test_flags_show_no_type_and_numbers_a_name(name):
    shown = invoke(*[name for name in (name,) if name], "--help").stdout
    assert "--help" in shown and not any(kind in shown for kind in ("<bool>", "<str>", "<list", "BOOLEAN"))
    assert "<int" not in shown and "<float" not in shown


def test_a_flag_is_still_named_when_it_is_misused():
    done = invoke("info", "x", "--json=3")
    assert done.exit_code == 2 and "--json" in done.stderr
