"""The modules that a row enters are those of docs/contributing/architecture.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = "### The way of the data"
MOST = 60


@pytest.fixture(autouse=True)
def _bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "bench"))


def listed() -> list[set[str]]:
    """Return the modules of each table of the section."""
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(SECTION)[1].split("\n### ")[0]
    tables = section.split("| --- | --- |")[1:]
    return [
        {
            line.split("|")[1].strip().replace("\\", "").replace("/__init__", "").replace("/", ".")
            for line in table.splitlines()
            if line.startswith("| ") and not line.startswith("| module")
        }
        for table in tables
    ]


def test_modules_of_each_way_are_listed() -> None:
    import way_of_the_data

    tasks, *others = listed()
    entered = {way: set(way_of_the_data.modules_of(way)) for way in ("", "model", "failing")}
    assert entered[""] == tasks
    assert [entered[way] - tasks for way in ("model", "failing")] == others
    assert max(map(len, entered.values())) <= MOST
    assert sys.getprofile() is None
