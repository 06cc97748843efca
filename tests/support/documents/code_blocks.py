"""All code blocks of the READMEs and of docs/, and why some of them are not run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from support.documents.pages import ROOT

_FENCE = re.compile(r"^ *(?:`{3,}|~{3,})", re.MULTILINE)
_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>[^\n]+) -->\n\n?)?"
    r"^ *(?P<fence>`{3,}|~{3,}) *(?P<language>[^\n]*)\n(?P<text>.*?)^ *(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a page. `reason` says why no test runs or parses it; empty if one does."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    @property
    def where(self) -> str:
        """Return where the block is, such as `docs/cli.md:36 (bash)`."""
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


def code_blocks() -> list[CodeBlock]:
    """Return the code blocks of all pages, in the order of the pages."""
    pages = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [block for page in pages for block in blocks_of(page)]


def blocks_of(page: Path) -> list[CodeBlock]:
    """Return the code blocks of a page. Raises ValueError for a block without an end."""
    text = page.read_text(encoding="utf-8")
    blocks = [
        CodeBlock(
            str(page.relative_to(ROOT)),
            text.count("\n", 0, match.start("fence")) + 1,
            match["language"].strip(),
            match["text"],
            match["reason"] or "",
        )
        for match in _BLOCK.finditer(text)
    ]
    if len(_FENCE.findall(text)) != 2 * len(blocks):
        raise ValueError(f"{page}: a code block has no end")
    return blocks
