"""Documents such as PDF files, and their options."""

import math
from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import SpecModel, invalid
from batchinference.spec.media import MAX_PIXELS, MaxPixels
from batchinference.spec.read.base import ReadFiles, RowOptions

POINTS_PER_INCH = 72
USUAL_PAGE = (842, 595)
"""Height and width of an A4 page in points."""


class Render(SpecModel):
    """How the pages of PDF files become images."""

    dpi: Annotated[int, Field(ge=10, le=1200)] = 150
    """Pixels per inch."""
    max_pixels: MaxPixels = MAX_PIXELS
    """Maximum number of pixels of an image. A larger page is a failed row."""


class DocumentOptions(RowOptions):
    rows: Literal["page", "element"] = "page"
    """`page`: each page of a PDF file, each slide, and each document of another kind is a row.
    `element`: each paragraph, heading, list item, table and note is a row. In a PDF file, each
    block of lines is a row."""
    render: Render | None = None
    """Add a column `image` with the pixels of each page of PDF files, for vision models. The column
    is null for other documents. Only with `rows: page`."""

    def _check(self) -> None:
        super()._check()
        if self.render is not None and self.rows != "page":
            raise invalid("render is for pages, and rows is 'element'. Set rows: page")

    @property
    def row_columns(self) -> list[str]:
        """Return the columns of a page or element."""
        if self.rows == "element":
            return ["page", "element_index", "kind", "text", "box", "title", "attachments"]
        return ["page", "text", "title", "attachments", *["image"] * (self.render is not None)]


class ReadDocuments(ReadFiles):
    """PDF, DOCX, PPTX, HTML and EML files, one row per page or element, with its `text`."""

    EXTENSIONS = ("pdf", "docx", "pptx", "html", "htm", "eml")

    format: Literal["documents"]
    options: DocumentOptions = DocumentOptions()

    @property
    def own_columns(self) -> list[str]:
        return self.options.row_columns

    def row_bytes(self, size: int, rows: int) -> int:
        pixels = 0
        if self.options.render is not None:
            scale = self.options.render.dpi / POINTS_PER_INCH
            pixels = min(self.options.render.max_pixels, int(math.prod(USUAL_PAGE) * scale**2))
        return super().row_bytes(size, rows) + 3 * pixels
