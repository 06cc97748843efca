"""The code blocks of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from support.documents import Document

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The blocks in one language, in their order."""
    text = (ROOT / page).read_text()
    return [body for found, body in _BLOCK.findall(text) if found == language]


def code_of_pages() -> str:
    """The module `steps` that the jobs of all pages name."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    return "\n".join(block for page in pages for block in blocks(str(page), "python"))


def jobs(page: str) -> list[Document]:
    """The jobs of a page."""
    return [yaml.safe_load(block) for block in blocks(page, "yaml")]


def name_of(job: Document) -> str:
    """The name of a job, for the name of its test."""
    return str(job["metadata"]["name"])
