"""The code blocks of the documentation's pages."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from support.documents.minimal import Document

ROOT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


_FUNCTION = re.compile(r"^(def|class) ", re.MULTILINE)
"""A block without one is a program of its own."""


def blocks(page: str, language: str) -> list[str]:
    """Return a page's code blocks in one language, in order."""
    text = (ROOT / page).read_text()
    return [body for match, body in _BLOCK.findall(text) if match == language]


def code_of_pages() -> str:
    """Return the source of the module `steps`, which the pages' jobs refer to."""
    pages = [str(page) for page in sorted((ROOT / "docs").glob("*.md"))]
    with_jobs = [page for page in pages if blocks(page, "yaml")]
    code = (block for page in with_jobs for block in blocks(page, "python"))
    return "\n".join(block for block in code if _FUNCTION.search(block))


def jobs(page: str) -> list[Document]:
    """Return the jobs and outputs of a page, without blocks of steps or values of the chart."""
    documents = (yaml.load(block, yaml.CSafeLoader) for block in blocks(page, "yaml"))
    return [each for each in documents if "kind" in each or "write" in each]


def parts_of_jobs(page: str) -> list[Document]:
    """Return the specs in a page's blocks that begin with `read`, which readers put into a job."""
    specs = (yaml.load(block, yaml.CSafeLoader) for block in blocks(page, "yaml"))
    return [spec for spec in specs if "read" in spec]


def name_of(job: Document) -> str:
    return str(job["metadata"]["name"])
