"""The page that says where each thing is which the field asks for."""

from __future__ import annotations

import re

import pytest

from batchinference.spec.reference import reference
from support.documentation import ROOT

ROWS = [
    [cell.strip() for cell in line.split(" | ", 2)]
    for line in (ROOT / "docs/coverage.md").read_text().splitlines()
    if re.match(r"\| \d+ \|", line)
]
FIELDS = re.compile(r"`((?:read|write|errors|cluster|resources|replicas)\.\w+)")


def test_all_68_are_there() -> None:
    assert [int(number.strip("| ")) for number, *_ in ROWS] == list(range(1, 69))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_a_row_names_what_shows_it_or_a_reason(row: list[str]) -> None:
    _, asked, where = row
    assert asked
    assert "](" in where or "`" in where or "not " in where


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_the_fields_that_a_row_names_exist(row: list[str]) -> None:
    known = reference()
    for field in FIELDS.findall(row[2]):
        last = field.split(".")[1]
        assert re.search(rf"`[\w.\[\]]*\b{last}`", known), field
