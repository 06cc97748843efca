"""Links of pages: their anchors exist, and those to files outside of the site lead there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs_links import on_page_markdown
from support.documents.pages import ROOT

LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in titles}


def test_anchors_of_links_exist() -> None:
    """`make docs` checks pages of the site only."""
    missing = [
        (str(page.relative_to(ROOT)), name, anchor)
        for page in PAGES
        for name, anchor in LINK.findall(page.read_text())
        if (name or page.name).endswith(".md")
        and anchor not in anchors(page.parent / name if name else page)
    ]
    assert missing == []


def test_links_to_files_outside_of_the_site_lead_to_the_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "[a](../tests/a.py), [b](contributing/b.md#c), [d](d.md)"
    monkeypatch.setenv("REPOSITORY_URL", "https://git.example/x/")
    root = "https://git.example/x/blob/main"
    expected = f"[a]({root}/tests/a.py), [b]({root}/docs/contributing/b.md#c), [d](d.md)"
    assert on_page_markdown(text) == expected
    monkeypatch.delenv("REPOSITORY_URL")
    assert on_page_markdown(text) == "a, b, [d](d.md)"
