"""Data of report pages, and a parser of these pages."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from batchinference.pipeline.html_report.page import PageData
from batchinference.spec import parse
from batchinference.spec.report import Report
from support.documents.minimal import document

VOID = {"meta", "link", "img", "br", "hr", "input", "line", "circle", "path"}
TIMES = {"startedAt": "2026-03-02T09:00:00Z", "updatedAt": "2026-03-02T09:01:11Z"}
STEPS = {
    "decode": {"rows": 990, "seconds": 30, "rowsPerSecond": 33},
    "classify": {"rows": 990, "seconds": 5, "rowsPerSecond": 198},
}
SUCCEEDED: dict[str, Any] = {
    "name": "breeds",
    "state": "succeeded",
    "output": "./out",
    "version": "0.1.0",
    **TIMES,
    "counts": {"read": 1000, "written": 900, "failed": 60, "filtered": 40},
    "progress": {"rows": 1000, "total": 1000, "percent": 100, "rowsPerSecond": 16.7},
    "seconds": {"preparing": 9, "running": 60, "finalizing": 2},
    "steps": STEPS,
    "memory": {"peakWorkerBytes": 3 * 2**29},
    "rowsOverTime": {"seconds": [0, 20, 40, 60], "rows": [0, 100, 600, 1000]},
    "versions": {"python": "3.11.16", "ray": "2.60.0"},
}


def page_data(report: dict[str, Any] | None = None, **given: Any) -> PageData:
    """Return the data of a page: a succeeded job with two steps. `report` replaces fields of its
    report, and `steps` the steps of its spec. Other arguments are fields of PageData."""
    steps = given.pop("steps", None) or [
        {"name": "decode", "python": {"callable": "steps:decode"}},
        {"name": "classify", "filter": "len(text) > 3"},
    ]
    spec = parse(document("breeds", steps=steps)).spec
    return PageData(Report.parse(json.dumps(SUCCEEDED | (report or {}))), spec, **given)


def cut_on_a_phone(html: str) -> list[str]:
    """Return the values in tables that become cards without the names of their columns. Raises
    AssertionError if a table is not in a region with a name, which scrolls."""
    region = (
        r'<div class="scroll" tabindex="0" role="region" aria-label="[^"]+">\s*(<table.*?/table>)'
    )
    tables = re.findall(region, html, re.DOTALL)
    assert len(tables) == html.count("<table")
    cards = "".join(table for table in tables if table.startswith('<table class="stacked">'))
    return re.findall(r"<td(?![^>]* data-label)[^>]*>(?!</td>)[^<]*", cards)


class Page(HTMLParser):
    """A parsed page. Raises AssertionError if an element is not closed properly."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((tuple(self._open), data.strip()))

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements with this tag."""
        return [attributes for element, attributes in self.elements if element == tag]

    def text(self, tag: str = "body") -> str:
        """Return the text in all elements with this tag."""
        return " ".join(" ".join(text.split()) for path, text in self.texts if tag in path)
