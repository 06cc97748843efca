"""Reads and renders PDF files with PDFium. PDFium is not thread-safe, so a lock guards each use."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
from pypdfium2 import PdfDocument, PdfiumError, PdfPage, PdfPosConv, PdfTextPage, raw

from batchinference.pipeline.error_classification import is_about_the_file
from batchinference.pipeline.input.documents import Box, Document, Element, Page
from batchinference.spec.read.documents import POINTS_PER_INCH

if TYPE_CHECKING:
    from batchinference.spec.read import DocumentOptions, Render

MAX_PAGES = 100_000
_LOCK = RLock()
_LINE_END, _HYPHEN = "\r\n", "\ufffe"
"""The characters of PDFium between lines, and for a hyphen that divides a word at a line end."""
_CAUSES = {
    raw.FPDF_ERR_FORMAT: "it is damaged, or has no pages",
    raw.FPDF_ERR_PASSWORD: "it is encrypted and needs a password. Save it without a password",
    raw.FPDF_ERR_SECURITY: "it is encrypted in a way that PDFium does not know. Save it without "
    "encryption",
}
_END, _NOT_CHECKED = 2, "Off".encode("utf-16-le")
"""The size of the terminator of a PDFium text, and the value of an unchecked checkbox."""
_UNITS = 100
"""Units per point for conversions by PDFium, which returns integers."""
_SAME_BLOCK, _SAME_SIZE = 0.7, 1.35
"""Two lines are in one block if their distance is at most _SAME_BLOCK line heights. The ratio of
their heights must be at most _SAME_SIZE."""


def open_pdf(content: bytes, options: DocumentOptions) -> Document:
    """Return a PDF file as a document. Raises ValueError if it cannot be opened."""
    with _LOCK:
        pdf = _opened(content)
        names = (pdf.get_attachment(index).get_name() for index in range(pdf.count_attachments()))
        attachments = list(names)
        title = pdf.get_metadata_value("Title") or None
    return Document(_pages(pdf, options), title, attachments, len(attachments))


def _opened(content: bytes) -> PdfDocument:
    # for a file without pages, PDFium reports its last error, which this call sets to ERR_FORMAT
    raw.FPDF_LoadMemDocument64(b"x", 1, None)
    try:
        pdf = PdfDocument(content)
    except PdfiumError as error:
        cause = _CAUSES.get(error.err_code, str(error))
        raise ValueError(f"the PDF file cannot be opened: {cause}") from None
    if len(pdf) > MAX_PAGES:
        pages = len(pdf)
        pdf.close()
        raise ValueError(f"the PDF file states {pages} pages, and at most {MAX_PAGES} are read")
    return pdf


def _pages(pdf: PdfDocument, options: DocumentOptions) -> Iterator[Page | Exception]:
    try:
        with _LOCK:
            pdf.init_forms()  # otherwise values of form fields are neither drawn nor counted
        for index in range(len(pdf)):
            yield _page_or_error(pdf, index, options)
    finally:
        with _LOCK:
            pdf.close()


def _page_or_error(pdf: PdfDocument, index: int, options: DocumentOptions) -> Page | Exception:
    try:
        with _LOCK, closing(pdf.get_page(index)) as page:
            page_read = _page(page, index + 1, options)
            annotations = range(raw.FPDFPage_GetAnnotCount(page))
            page_read.left_out = sum(_has_text(page, at, pdf) for at in annotations)
            return page_read
    except Exception as error:
        if not is_about_the_file(error):
            raise
        return ValueError(f"page {index + 1}: {error}")


def _page(page: PdfPage, number: int, options: DocumentOptions) -> Page:
    image = None if options.render is None else _rendered(page, options.render)
    with closing(page.get_textpage()) as texts:
        text = texts.get_text_range(errors="strict")
        elements = list(_blocks(page, texts, text)) if options.rows == "element" else ()
    return Page(_plain(text), elements, number, image)


def _plain(text: str) -> str:
    """Return a text of PDFium with the line ends and hyphens that the page shows."""
    return text.replace(_LINE_END, "\n").replace(_HYPHEN, "-\n")


def _has_text(page: PdfPage, index: int, pdf: PdfDocument) -> bool:
    """Return whether an annotation is a form field with a value, or has a text."""
    annotation = raw.FPDFPage_GetAnnot(page, index)
    try:
        if raw.FPDFAnnot_GetSubtype(annotation) != raw.FPDF_ANNOT_WIDGET:
            return bool(raw.FPDFAnnot_GetStringValue(annotation, b"Contents", None, 0) > _END)
        if pdf.formenv is None:
            return False
        size = raw.FPDFAnnot_GetFormFieldValue(pdf.formenv, annotation, None, 0)
        value = ctypes.create_string_buffer(size)
        units = ctypes.cast(value, ctypes.POINTER(raw.FPDF_WCHAR))
        raw.FPDFAnnot_GetFormFieldValue(pdf.formenv, annotation, units, size)
        return bool(size > _END) and value.raw[:-_END] != _NOT_CHECKED
    finally:
        raw.FPDFPage_CloseAnnot(annotation)


def _rendered(page: PdfPage, render: Render) -> np.ndarray:
    scale = render.dpi / POINTS_PER_INCH
    width, height = (math.ceil(side * scale) for side in page.get_size())
    if width * height > render.max_pixels:
        raise ValueError(
            f"{width} x {height} pixels are more than render.maxPixels ({render.max_pixels}). "
            "Raise the limit, or reduce render.dpi"
        )
    with closing(page.render(scale=scale, rev_byteorder=True)) as bitmap:
        pixels = np.array(bitmap.to_numpy())
    return np.ascontiguousarray(np.broadcast_to(pixels[:, :, :3], (*pixels.shape[:2], 3)))


def _blocks(page: PdfPage, texts: PdfTextPage, text: str) -> Iterator[Element]:
    """Yield the text of a page as blocks of adjacent lines, without blank lines."""
    lines: list[tuple[str, Box]] = []
    for line in _lines(page, texts, text):
        if lines and not _continues(lines[-1][1], line[1]):
            yield _block(lines)
            lines = []
        lines.append(line)
    if lines:
        yield _block(lines)


def _block(lines: Sequence[tuple[str, Box]]) -> Element:
    lefts, tops, rights, bottoms = zip(*(box for _, box in lines), strict=True)
    around = min(lefts), min(tops), max(rights), max(bottoms)
    return Element("block", "\n".join(text for text, _ in lines), around)


def _continues(before: Box, box: Box) -> bool:
    """Return whether a line belongs to the block of the line before it."""
    heights = before[3] - before[1], box[3] - box[1]
    overlap = min(before[2], box[2]) - max(before[0], box[0])
    gap = box[1] - before[3]
    return (
        max(heights) <= _SAME_SIZE * min(heights)
        and overlap > 0
        and -min(heights) < gap <= _SAME_BLOCK * max(heights)
    )


def _lines(page: PdfPage, texts: PdfTextPage, text: str) -> Iterator[tuple[str, Box]]:
    """Yield the non-blank lines of a page, and their boxes."""
    width, height = page.get_size()
    to_points = PdfPosConv(page, (0, 0, round(width * _UNITS), round(height * _UNITS), 0))
    start = 0
    for line in text.split(_LINE_END):
        units = len(line.encode("utf-16-le")) // 2
        if line.strip():
            yield _plain(line.strip()), _box(texts, to_points, start, start + units)
        start += units + len(_LINE_END)


def _box(texts: PdfTextPage, to_points: PdfPosConv, start: int, stop: int) -> Box:
    """Return the box of text from `start` to `stop` (UTF-16 code units), at least a line high."""
    first, last = (raw.FPDFText_GetCharIndexFromTextIndex(texts, at) for at in (start, stop - 1))
    count = texts.count_rects(first, last - first + 1)
    boxes = [*map(texts.get_rect, range(count)), texts.get_charbox(first, loose=True)]
    corners = []
    for left, bottom, right, top in boxes:
        corners += [to_points.to_bitmap(left, bottom), to_points.to_bitmap(right, top)]
    xs, ys = ([value / _UNITS for value in values] for values in zip(*corners, strict=True))
    return min(xs), min(ys), max(xs), max(ys)
