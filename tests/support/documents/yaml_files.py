"""Reads YAML files."""

from __future__ import annotations

from pathlib import Path

import yaml

from support.documents.minimal import Document


def read_yaml(file: Path) -> Document:
    """Return the document of a file. It is parsed in C, because some files have 10,000 lines."""
    document: Document = yaml.load(file.read_text(), yaml.CSafeLoader)
    return document


PARTS = read_yaml(Path(__file__).with_name("valid_parts.yaml"))
"""Parts of valid jobs, which together use every field."""
