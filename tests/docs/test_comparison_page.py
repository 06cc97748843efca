"""The page about other tools has the results of the corpus of `make traps`."""

from __future__ import annotations

import re

from support.documents.pages import ROOT
from traps.cases import KINDS
from traps.table import BEGIN, END
from traps.verdict import MAX_REFUSED

PAGE = (ROOT / "docs/comparison.md").read_text()


def table() -> list[list[str]]:
    page = (ROOT / "docs/contributing/traps.md").read_text()
    lines = page.split(BEGIN)[1].split(END)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def test_table_has_a_row_for_each_kind_of_input() -> None:
    assert [row[0] for row in table()] == [*KINDS.values(), "all"]
    assert all(int(row[1]) >= 4 for row in table())


def test_page_has_the_totals_of_the_table() -> None:
    assert f"{len(KINDS)} cases" in PAGE
    assert f"| {' | '.join(table()[-1])} |" in PAGE


def test_product_is_never_silently_wrong_in_the_table() -> None:
    own = [row[2] for row in table()]
    assert not [cell for cell in own if "wrong" in cell]
    refused = re.search(r"(\d+) refused", own[-1])
    assert refused is None or int(refused[1]) <= MAX_REFUSED
