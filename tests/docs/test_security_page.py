"""docs/security.md names existing tests, and lists all policy violations of the tests."""

from __future__ import annotations

import re
from pathlib import Path

from support.documents.policy_violations import VIOLATIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
CITED = re.findall(r"\[(test_\w+)\]\(\.\./(tests/[\w/]+\.py)\)", PAGE)


def test_each_cited_test_exists() -> None:
    assert len(CITED) > 30
    missing = [
        f"{file}::{name}"
        for name, file in CITED
        if not re.search(rf"def {name}\(", (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_table_lists_each_policy_violation() -> None:
    assert len(VIOLATIONS) >= 40
    rows = [
        f"| {number} | `{one.path}` | {one.about} | {one.rule} |"
        for number, one in enumerate(VIOLATIONS, start=1)
    ]
    table = "\n".join(["| | field | violation | refused by |", "| --- | --- | --- | --- |", *rows])
    assert f"<!-- violations -->\n{table}\n<!-- end -->" in PAGE
