"""docs/mistakes.md has the message of each typical mistake."""

from __future__ import annotations

from pathlib import Path

from support.documents.mistakes import MISTAKES, table

PAGE = Path(__file__).parents[2] / "docs/mistakes.md"


def test_the_message_of_each_mistake_is_listed() -> None:
    assert len(MISTAKES) >= 60
    assert f"<!-- mistakes -->\n{table()}\n<!-- end -->" in PAGE.read_text(encoding="utf-8")
