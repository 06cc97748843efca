"""Recognizes the kind of a document, and opens it with the module of this kind."""

from __future__ import annotations

import importlib
import io
import zipfile
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.input import AFTER_CRASH
from batchinference.pipeline.input.documents import Document
from batchinference.pipeline.input.signatures import HEAD_BYTES, HTML, MAIL, PDF

if TYPE_CHECKING:
    from batchinference.spec.read import DocumentOptions


_MAIN_PARTS = {"word": "docx", "ppt": "pptx"}
_OTHERS_IN_ZIP = {
    "xl": "a workbook. Export its sheets as CSV",
    "META-INF": "a document of another program, such as LibreOffice. Save it as .docx, .pptx "
    "or .pdf",
}
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OLE_KINDS = {
    "EncryptedPackage": "an encrypted document. Save it without a password",
    "WordDocument": "a document of an old version of Word (.doc). Save it as .docx",
    "PowerPoint Document": "a presentation of an old version of PowerPoint (.ppt). Save it as "
    ".pptx",
    "Workbook": "a workbook of an old version of Excel (.xls). Export its sheets as CSV",
    "__properties_version1.0": "an e-mail of Outlook (.msg). Save it as .eml",
}
"""By a name in an OLE file (the format of old Office programs): what the file is, and the fix."""
_UNKNOWN = "no PDF, DOCX, PPTX, HTML or EML file"
_MODULES = {"pdf": "pdf", "docx": "office", "pptx": "office", "html": "markup", "eml": "mail"}


def open_document(content: bytes, name: str, options: DocumentOptions) -> Document:
    """Return the document in a file. Raises an error if it cannot be read."""
    kind = document_kind(content, name, options.row_bytes)
    module = "pdf_subprocess" if kind == "pdf" and AFTER_CRASH.get() else _MODULES[kind]
    opened = getattr(importlib.import_module(f"{__package__}.{module}"), f"open_{kind}")
    return cast(Document, opened(content, options))


def document_kind(content: bytes, name: str, max_bytes: int) -> str:
    """Return the kind of a document: pdf, docx, pptx, html or eml. The extension of `name` counts
    only for html and eml. Raises BadZipFile for a damaged zip archive, and ValueError for other
    files and for a document of more than `max_bytes` (unpacked)."""
    if not content:
        raise ValueError("the file is empty")
    head, extension = content[:HEAD_BYTES], name.lower().rpartition(".")[2]
    if PDF.match(head):
        return "pdf"
    if content.startswith(b"PK\3\4"):
        return _kind_in_zip(content, max_bytes)
    if content.startswith(_OLE):
        kinds = ((name.encode("utf-16-le"), kind) for name, kind in _OLE_KINDS.items())
        raise _refusal(next((kind for name, kind in kinds if name in content), _UNKNOWN))
    if HTML.match(head) or extension in ("html", "htm"):
        return "html"
    if MAIL.match(head) or extension == "eml":
        return "eml"
    raise _refusal(_UNKNOWN)


def _kind_in_zip(content: bytes, max_bytes: int) -> str:
    members = zipfile.ZipFile(io.BytesIO(content)).infolist()
    size = sum(member.file_size for member in members)
    if size > max_bytes:  # zipfile never unpacks more than the stated size of a member
        raise ValueError(
            f"read.options.maxRowBytes: the parts of the document have {size} bytes, more than the "
            f"limit ({max_bytes}). Raise the limit, or remove large pictures from the document"
        )
    folders = {member.filename.partition("/")[0] for member in members if "/" in member.filename}
    for folder, kind in _MAIN_PARTS.items():
        if folder in folders:
            return kind
    others = (what for folder, what in _OTHERS_IN_ZIP.items() if folder in folders)
    raise _refusal(next(others, _UNKNOWN))


def _refusal(what: str) -> ValueError:
    return ValueError(f"the file is {what}")
