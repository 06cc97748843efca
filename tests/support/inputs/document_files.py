"""Documents that tests write."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from email.message import EmailMessage
from typing import Any

import docx
import pptx
from reportlab.pdfgen.canvas import Canvas

LINE = 14
"""Points between the lines of a page."""


def pdf_with(draw: Iterable[Callable[[Canvas], Any]], **options: Any) -> bytes:
    """Return a PDF file with a page for each function, which draws it."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, **options)
    canvas.setTitle("")
    for page in draw:
        page(canvas)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def pdf_of(*pages: str, **options: Any) -> bytes:
    """Return a PDF file with a page for each text. A line is drawn below the one before it."""

    def drawn(text: str) -> Callable[[Canvas], None]:
        def draw(canvas: Canvas) -> None:
            for number, line in enumerate(text.split("\n")):
                canvas.drawString(72, 720 - LINE * number, line)

        return draw

    return pdf_with(map(drawn, pages), **options)


def raw_pdf(*objects: bytes) -> bytes:
    """Return a PDF file of these objects. The first one is the catalogue."""
    content, offsets = b"%PDF-1.7\n", []
    for number, value in enumerate(objects, 1):
        offsets.append(len(content))
        content += b"%d 0 obj\n%b\nendobj\n" % (number, value)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return content + (
        b"xref\n0 %d\n0000000000 65535 f \n%btrailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
        % (size, table, size, len(content))
    )


def stream(content: bytes) -> bytes:
    """Return the object of a stream."""
    return b"<</Length %d>>stream\n%b\nendstream" % (len(content), content)


def docx_with(write: Callable[[Any], Any]) -> bytes:
    """Return a DOCX file that a function writes."""
    document = docx.Document()
    document.core_properties.title = ""
    write(document)
    return _saved(document)


def pptx_with(write: Callable[[Any], Any]) -> bytes:
    """Return a PPTX file that a function writes."""
    presentation = pptx.Presentation()
    presentation.core_properties.title = ""
    write(presentation)
    return _saved(presentation)


def _saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def mail_of(text: str | None = None, html: str | None = None, *files: str) -> bytes:
    """Return an e-mail with these texts and attached files."""
    message = EmailMessage()
    message["Subject"], message["From"] = "Grüße", "a@example.com"
    if text is not None:
        message.set_content(text)
    if html is not None:
        (message.add_alternative if text is not None else message.set_content)(html, subtype="html")
    for name in files:
        message.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename=name)
    return message.as_bytes()
