"""Replaces the generated tables between two comments in pages of the documentation, and generates
the tables of findings and warnings."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from batchinference.pipeline.verify.findings import Kind
from batchinference.spec.warnings import WarningName

DOCS = Path(__file__).parents[2] / "docs"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = (f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))
    return "".join(lines)


def page(name: str, **tables: str) -> str:
    """Return the page `name` with these tables. The table NAME replaces the text between the
    comments `<!-- NAME -->` and `<!-- end -->`."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for comment, content in tables.items():
        pattern = rf"(?<=<!-- {comment} -->\n).*?(?=<!-- end -->)"
        text = re.sub(pattern, lambda _, content=content: content, text, flags=re.DOTALL)
    return text


def findings() -> str:
    """Return a table with each finding of `verify`."""
    rows = ((f"`{kind.value}`", kind.meaning, kind.fix) for kind in Kind)
    return table(("`kind`", "what is counted", "what to do"), rows)


def warnings() -> str:
    """Return a table with each warning."""
    rows = ((f"`{one.value}`", f"{one.unit}s", one.amount, one.meaning, one.fix)
            for one in WarningName)  # fmt: skip
    return table(("name", "counts", "adds up", "what has happened", "what to do"), rows)
