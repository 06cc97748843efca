"""The pages about security name existing tests, and list all policy violations of the tests."""

from __future__ import annotations

import re
from pathlib import Path

from support.documents.fields_of_tenants import REASONS, fields_of_tenants
from support.documents.policy_violations import VIOLATIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
TESTS = (ROOT / "docs/contributing/security-tests.md").read_text(encoding="utf-8")
CITED = re.findall(r"\[(test_\w+)\]\((?:\.\./)+(tests/[\w/]+\.py)\)", PAGE + TESTS)


def test_each_cited_test_exists() -> None:
    assert len(CITED) > 30
    missing = [
        f"{file}::{name}"
        for name, file in CITED
        if not re.search(rf"def {name}\(", (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_table_lists_each_policy_violation() -> None:
    assert len(VIOLATIONS) >= 25
    rows = [
        f"| {number} | `{one.path}` | {one.about} | {one.rule} |"
        for number, one in enumerate(VIOLATIONS, start=1)
    ]
    table = "\n".join(["| | field | violation | refused by |", "| --- | --- | --- | --- |", *rows])
    assert f"<!-- violations -->\n{table}\n<!-- end -->" in TESTS


WITHOUT_PROFILES = "cluster.profiles"
"""The row about platforms that allow no profiles. By default they do, so it covers no field."""


def covered(field: str, row: str) -> bool:
    """Return whether a row of the table is about a field, a part of it or an object around it."""
    inner, outer = sorted((field, row), key=len, reverse=True)
    return inner == outer or (inner.startswith(outer) and inner[len(outer)] in ".[{")


def test_each_field_that_names_something_has_a_violation_or_a_reason() -> None:
    """A new field needs a row in the table, or a reason in REASONS."""
    rows = {one.path for one in VIOLATIONS} - {WITHOUT_PROFILES}
    given = {field for fields in REASONS.values() for field in fields}
    fields = fields_of_tenants()
    with_row = {field for field in fields if any(covered(field, row) for row in rows)}
    assert len(fields) > 80
    assert sorted(fields - with_row - given) == []
    assert sorted(given - fields) == [], "there is no such field"
    assert sorted(given & with_row) == [], "the field has a row"


def test_fields_of_the_table_exist() -> None:
    fields = fields_of_tenants() | {"metadata.namespace", "steps[].resources.gpu"}
    assert [one.path for one in VIOLATIONS if not any(covered(f, one.path) for f in fields)] == []
