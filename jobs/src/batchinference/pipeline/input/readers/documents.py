"""Reads documents such as PDF files: one row per page, or one row per element of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.input.documents import Document, Element, Page
from batchinference.pipeline.input.documents.kinds import open_document
from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, grouped, or_bad
from batchinference.pipeline.input.readers.text_lines import TOO_LARGE
from batchinference.pipeline.input.signatures import is_document
from batchinference.pipeline.media.images import to_arrow
from batchinference.pipeline.row_warnings import RowWarning, with_warnings
from batchinference.pipeline.storage.location import Location
from batchinference.spec.warnings import WarningName

if TYPE_CHECKING:
    from batchinference.spec.read import DocumentOptions

CHUNK_ROWS, CHUNK_BYTES = 1024, 8 << 20
_TYPES = {
    "page": pa.int64(),
    "element_index": pa.int64(),
    "kind": pa.string(),
    "text": pa.string(),
    "box": pa.list_(pa.float64()),
    "title": pa.string(),
    "attachments": pa.list_(pa.string()),
}
_PAGES = re.compile(rb"/Type\s*/Page\b|PK\x01\x02.{42}ppt/slides/slide", re.DOTALL)
"""Matches each page in most PDF files, and each slide in the central directory of a PPTX file."""


@dataclass(frozen=True)
class _Row:
    page: Page
    element: Element
    index: int
    warnings: Sequence[RowWarning]

    @property
    def size(self) -> int:
        """The approximate bytes of the row: characters of its text, and bytes of its picture."""
        image = self.page.image
        return len(self.element.text) + (0 if image is None else image.nbytes)


class DocumentReader(Reader):
    recognizes = staticmethod(is_document)

    def __init__(self, options: DocumentOptions) -> None:
        self._options = options
        self._by_element = options.rows == "element"

    def read(self, file: Location) -> Iterator[Chunk]:
        content = file.read(self._options.row_bytes + 1)
        document = or_bad(partial(self._opened, content, file))
        if isinstance(document, BadRow):
            yield document
            return
        rows = self._rows(document)
        for group in grouped(rows, lambda row: row.size, CHUNK_BYTES, CHUNK_ROWS):
            yield group if isinstance(group, BadRow) else self._table(group, document)

    def _opened(self, content: bytes, file: Location) -> Document:
        if len(content) > self._options.row_bytes:
            raise ValueError(TOO_LARGE.format("file", self._options.row_bytes))
        return open_document(content, file.path, self._options)

    def _rows(self, document: Document) -> Iterator[_Row | BadRow]:
        index, left_out = 0, document.left_out
        for page in document.pages:
            if isinstance(page, Exception):
                yield BadRow(page, 1, _left_out_warnings(left_out))
            else:
                rows = self._rows_of(page, index, _left_out_warnings(left_out + page.left_out))
                yield from rows
                index += len(rows)
            left_out = 0

    def _rows_of(self, page: Page, index: int, warnings: list[RowWarning]) -> list[_Row]:
        """Return the rows of a page, at least one. The first row has the index `index`."""
        if not page.text.strip():
            warnings = [*warnings, RowWarning(0, WarningName.NO_TEXT, 0)]
        if self._options.render is not None and page.image is None:
            warnings = [*warnings, RowWarning(0, WarningName.NOT_RENDERED, 0)]
        elements = page.elements if self._by_element else ()
        first, *others = elements or [Element("page", page.text)]
        rows = [_Row(page, element, index + at, ()) for at, element in enumerate(others, 1)]
        return [_Row(page, first, index, warnings), *rows]

    def _table(self, rows: Sequence[_Row], document: Document) -> pa.Table:
        """Return the rows as a table. It has the column `image` only if pages have images."""
        values = {
            "page": [row.page.number for row in rows],
            "element_index": [row.index for row in rows],
            "kind": [row.element.kind for row in rows],
            "text": [row.element.text for row in rows],
            "box": [row.element.box for row in rows],
            "title": [document.title] * len(rows),
            "attachments": [document.attachments] * len(rows),
        }
        names = [name for name in self._options.row_columns if name in values]
        table = pa.table({name: pa.array(values[name], _TYPES[name]) for name in names})
        images = [row.page.image for row in rows if row.page.image is not None]
        if images:
            table = table.append_column("image", to_arrow(images, None))
        return with_warnings(table, {at: row.warnings for at, row in enumerate(rows)})

    def counter(self) -> Reader:
        return DocumentReader(self._options.model_copy(update={"render": None}))

    def rows_in(self, file: Location, size: int) -> int | None:
        if self._by_element:
            return None
        # do not use PDFium: if it crashed, the process that plans the job would die
        return len(_PAGES.findall(file.read(self._options.row_bytes))) or 1

    def columns(self) -> list[str]:
        return self._options.row_columns

    def types(self) -> dict[str, pa.DataType]:
        return {name: _TYPES[name] for name in self._options.row_columns if name in _TYPES}


def _left_out_warnings(left_out: int) -> list[RowWarning]:
    """Return a list with the warning that parts are not read; empty if `left_out` is 0."""
    return [RowWarning(0, WarningName.PARTS_IGNORED, left_out)] if left_out else []
