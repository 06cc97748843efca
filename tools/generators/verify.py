"""Generates the table of findings in docs/verify.md."""

from __future__ import annotations

import re
from pathlib import Path

from batchinference.pipeline.verify.findings import Kind

PAGE = Path(__file__).parents[2] / "docs/verify.md"


def verify_page() -> str:
    """Return docs/verify.md with the current table."""
    rows = "".join(f"| `{kind.value}` | {kind.meaning} | {kind.fix} |\n" for kind in Kind)
    table = f"| `kind` | what is counted | what to do |\n| --- | --- | --- |\n{rows}"
    return re.sub(
        "(?<=<!-- findings -->\n).*?(?=<!-- end -->)",
        lambda _: table,
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
