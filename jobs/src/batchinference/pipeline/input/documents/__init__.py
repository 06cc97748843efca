"""Opens untrusted documents, and divides them into pages and elements; one module per kind.

Nothing that a document refers to is fetched: no picture, no style sheet, no external entity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np


Box = tuple[float, float, float, float]
"""Left, top, right and bottom of an element, in points from the top left corner of its page."""


class Element(NamedTuple):
    """A part of a page, such as a paragraph."""

    kind: str
    text: str
    box: Box | None = None


@dataclass
class Page:
    """A page, a slide, or a complete document if it has no pages. `number` counts from 1, and is
    None for a document without pages. `image` has the shape height x width x RGB (uint8).
    `left_out` is the number of parts that are not read, such as annotations."""

    text: str
    elements: Sequence[Element] = ()
    number: int | None = None
    image: np.ndarray | None = None
    left_out: int = 0

    @classmethod
    def of(cls, elements: Sequence[Element], number: int | None = None) -> Page:
        """Return a page whose text is the text of its elements, with empty lines between them."""
        return cls("\n\n".join(element.text for element in elements), elements, number)


@dataclass
class Document:
    """A document. `pages` yields an error in place of an unreadable page. `attachments` are names
    of attached files. `left_out` is the number of unread parts that no `Page.left_out` counts."""

    pages: Iterator[Page | Exception]
    title: str | None = None
    attachments: list[str] = field(default_factory=list)
    left_out: int = 0
