"""The documentation has the message of each typical mistake, and explains it."""

from __future__ import annotations

from generators.troubleshooting import MISTAKES as FAMILIES
from support.documents.mistakes import MISTAKES, messages, table
from support.documents.pages import ROOT

PAGE = ROOT / "docs/mistakes.md"
PARTS = [part for parts in FAMILIES for part in parts]


def test_the_message_of_each_mistake_is_listed() -> None:
    assert len(MISTAKES) >= 60
    assert f"<!-- mistakes -->\n{table()}\n<!-- end -->" in PAGE.read_text(encoding="utf-8")


def test_troubleshooting_explains_the_message_of_each_mistake() -> None:
    assert [text for text in messages() if not any(part in text for part in PARTS)] == []
    assert [part for part in PARTS if not any(part in text for text in messages())] == []


def test_a_message_begins_with_its_field_and_fits_two_lines() -> None:
    places = ("not valid YAML: line ", "spec.", "kind: ", "apiVersion: ", "metadata.", "'/work/")
    assert [text for text in messages() if not text.startswith(places)] == []
    assert [text for text in messages() if len(text) > 300] == []
