"""Reads Word (DOCX) and PowerPoint (PPTX) files by their XML markup."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import docx
import pptx
from lxml import etree

from batchinference.pipeline.error_classification import is_about_the_file
from batchinference.pipeline.input.documents import Document, Element, Page
from batchinference.pipeline.input.documents.markup import Markup
from batchinference.spec.read import DocumentOptions

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
"""The tag of content for programs that cannot show the content before it."""
_NOTES, _OTHER_PARTS = ("footnotes", "endnotes"), ("comments", "header", "footer")
_TITLES = ("title", "ctrTitle")
_TEXTS = (f"{_W}t", f"{_A}t", f"{_M}t")
_CHARACTERS = {
    **{f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"},
    **{f"{_A}br": "\n", f"{_M}den": " ", f"{_M}sub": " ", f"{_M}sup": " "},
}
_NOT_READ = (f"{_W}altChunk", f"{_W}sym")
"""The tags of embedded files, and of characters that only a font defines. They are not read."""


class _Office(Markup):
    """Office markup. `left_out` counts parts that are not read, such as the layout of equations."""

    def __init__(self) -> None:
        self.left_out = 0

    def text(self, node: etree._Element, kind: str) -> str:
        has_layout = node.tag == f"{_M}oMath" and any(part.tag != f"{_M}r" for part in node)
        self.left_out += has_layout or node.tag in _NOT_READ
        return (node.text or "") if node.tag in _TEXTS else _CHARACTERS.get(node.tag, "")


class _Word(_Office):
    """Word markup. `styles` maps the ids of styles to their names."""

    SKIPPED = frozenset((_FALLBACK, f"{_W}del", f"{_W}moveFrom", f"{_W}pPr", f"{_W}rPr"))
    TABLE, ROW, CELLS = f"{_W}tbl", f"{_W}tr", (f"{_W}tc",)

    def __init__(self, styles: dict[str, str]) -> None:
        super().__init__()
        self._styles = styles

    def kind(self, node: etree._Element) -> str | None:
        if node.tag == self.TABLE:
            return "table"
        return self._kind_of(node) if node.tag == f"{_W}p" else None

    def _kind_of(self, paragraph: etree._Element) -> str:
        style = paragraph.find(f"{_W}pPr/{_W}pStyle")
        name = "" if style is None else self._styles.get(style.get(f"{_W}val", ""), "")
        if name.startswith("heading") or name == "title":
            return "heading"
        is_listed = paragraph.find(f"{_W}pPr/{_W}numPr") is not None or name.startswith("list")
        return "list_item" if is_listed else "paragraph"


def open_docx(content: bytes, options: DocumentOptions) -> Document:  # noqa: ARG001
    """Return a Word file as one page. Raises an error if it cannot be read."""
    document = docx.Document(io.BytesIO(content))
    _check_markup(document.element)
    names = {
        style.get(f"{_W}styleId", ""): style.find(f"{_W}name").get(f"{_W}val", "").lower()
        for style in document.styles.element.iter(f"{_W}style")
        if style.find(f"{_W}name") is not None
    }
    word = _Word(names)
    elements = list(word.elements(document.element.body))
    left_out = 0
    for kind, root in _parts(document.part):
        if kind in _NOTES:
            elements += [element._replace(kind="note") for element in word.elements(root)]
        elif kind in _OTHER_PARTS:
            left_out += any(_Word(names).elements(root))
    title = document.core_properties.title or None
    return Document(iter([Page.of(elements)]), title, left_out=left_out + word.left_out)


def _parts(part: Any) -> Iterator[tuple[str, etree._Element]]:
    """Yield the kind and the markup of notes, comments, headers and footers of a document."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    for relation in part.rels.values():
        kind = relation.reltype.rpartition("/")[2]
        if kind in (*_NOTES, *_OTHER_PARTS) and not relation.is_external:
            yield kind, etree.fromstring(relation.target_part.blob, parser)


def _check_markup(root: etree._Element) -> None:
    """Raise ValueError if the markup has a DTD, which these formats forbid."""
    if root.getroottree().docinfo.doctype:
        raise ValueError("the document has a document type definition, which its format forbids")


class _Slides(_Office):
    SKIPPED = frozenset((_FALLBACK,))
    TABLE, ROW, CELLS = f"{_A}tbl", f"{_A}tr", (f"{_A}tc",)

    def kind(self, node: etree._Element) -> str | None:
        if node.tag == self.TABLE:
            return "table"
        if node.tag != f"{_A}p":
            return None
        shape = next(node.iterancestors(f"{_P}sp"), None)
        holder = None if shape is None else shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
        is_title = holder is not None and holder.get("type") in _TITLES
        return "heading" if is_title else "paragraph"


def open_pptx(content: bytes, options: DocumentOptions) -> Document:  # noqa: ARG001
    """Return a PowerPoint file with its slides as pages. Raises an error if it cannot be read."""
    slides = pptx.Presentation(io.BytesIO(content))
    _check_markup(slides.element)
    return Document(_slide_pages(slides.slides), slides.core_properties.title or None)


def _slide_pages(slides: Any) -> Iterator[Page | Exception]:
    if not len(slides):
        yield ValueError("the presentation has no slides")
    for number in range(1, len(slides) + 1):
        try:
            markup = _Slides()
            page = Page.of(list(_slide_elements(slides[number - 1], markup)), number)
            yield replace(page, left_out=markup.left_out)
        except Exception as error:
            if not is_about_the_file(error):
                raise
            yield ValueError(f"slide {number}: {error}")


def _slide_elements(slide: Any, markup: _Slides) -> Iterator[Element]:
    """Yield the elements of a slide, and then its speaker notes with the kind `note`."""
    _check_markup(slide.element)
    yield from markup.elements(slide.element)
    notes = slide.notes_slide.notes_placeholder if slide.has_notes_slide else None
    if notes is not None:
        for element in markup.elements(notes.element):
            yield element._replace(kind="note")
