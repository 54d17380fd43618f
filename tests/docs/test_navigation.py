"""The navigation is short, and every page can be reached from it."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")


def groups():
    """The pages of the navigation, by group."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    return {
        title: [page for entry in pages for page in entry.values()] for item in nav for title, pages in item.items()
    }


def test_the_navigation_has_five_groups_and_at_most_twenty_entries():
    pages = [page for group in groups().values() for page in group]
    assert len(groups()) == 5 and len(pages) == len(set(pages)) <= 20


def test_every_page_can_be_reached_from_the_navigation():
    reached, waiting = set(), [DOCS / page for group in groups().values() for page in group]
    while waiting:
        page = waiting.pop().resolve()
        if page not in reached:
            reached.add(page)
            waiting += [page.parent / link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.resolve() not in reached} == set()
