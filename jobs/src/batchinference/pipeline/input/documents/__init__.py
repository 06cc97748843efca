"""Divides documents from untrusted sources into pages and elements.

Nothing that a document refers to is fetched: no picture, no style sheet, no external entity.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from batchinference.pipeline.input import AFTER_CRASH
from batchinference.pipeline.input.documents.kinds import document_kind

if TYPE_CHECKING:
    import numpy as np

    from batchinference.spec.read import DocumentOptions

Box = tuple[float, float, float, float]
"""The left, top, right and bottom of an element in points, from the top left corner of its page."""


class Element(NamedTuple):
    """A part of a page, such as a paragraph."""

    kind: str
    text: str
    box: Box | None = None


@dataclass
class Page:
    """A page, a slide or a document without pages. `number` counts from 1; None without pages.
    `image` has the shape height x width x RGB (uint8), and `left_out` is the number of parts that
    are not read."""

    text: str
    elements: Sequence[Element] = ()
    number: int | None = None
    image: np.ndarray | None = None
    left_out: int = 0

    @classmethod
    def of(cls, elements: Sequence[Element], number: int | None = None) -> Page:
        """Return a page with the text of its elements, with an empty line between them."""
        return cls("\n\n".join(element.text for element in elements), elements, number)


@dataclass
class Document:
    """The pages of a document, with an error for each page that cannot be read. `attachments` are
    the names of attached files, and `left_out` is the number of parts outside of pages that are
    not read."""

    pages: Iterator[Page | Exception]
    title: str | None = None
    attachments: list[str] = field(default_factory=list)
    left_out: int = 0


_MODULES = {"pdf": "pdf", "docx": "office", "pptx": "office", "html": "markup", "eml": "mail"}


def open_document(content: bytes, name: str, options: DocumentOptions) -> Document:
    """Return the document in a file. Raises an error if it cannot be read."""
    kind = document_kind(content, name, options.row_bytes)
    module = "apart" if kind == "pdf" and AFTER_CRASH.get() else _MODULES[kind]
    opened = getattr(importlib.import_module(f"{__name__}.{module}"), f"open_{kind}")
    return cast(Document, opened(content, options))
