"""The outputs on docs/cli.md are what the commands print."""

from tests.docs.cli_page import PAGE, mask, rewrite, wrap


def test_the_page_shows_what_the_commands_print(tmp_path):
    page = PAGE.read_text()
    made = rewrite(page, tmp_path)
    assert mask(made) == mask(page), "run python -m tests.docs.cli_page"
    assert made.count("$ sgoif") == page.count("$ sgoif") >= 20


def test_a_changed_word_is_noticed_and_another_number_is_not():
    page = "```console\n$ sgoif info run\nabout 128 errors\nhardware   Linux, 2 cores\n```\n"
    assert mask(page) == mask(page.replace("128", "1,031").replace("2 cores", "64 cores, 8 GPUs"))
    assert mask(page) != mask(page.replace("about", "around"))


def test_prose_is_wrapped_and_tables_are_not():
    assert wrap("word " * 30).count("\n") == 2
    assert wrap("a  " + "b" * 200) == "a  " + "b" * 200 + "\n"
