"""Finds out which kind of document a file is, and what to do with other files."""

from __future__ import annotations

import io
import zipfile

from batchinference.pipeline.input.signatures import HEAD_BYTES, HTML, MAIL, PDF

_MAIN_PARTS = {"word/": "docx", "ppt/": "pptx"}
_OTHERS_IN_ZIP = {
    "xl/": "a workbook. Export its sheets as CSV",
    "META-INF/": "a document of another program, such as LibreOffice. Save it as .docx, .pptx "
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
"""What a file of the container of old Office programs is, by a name in it."""
_UNKNOWN = "no PDF, DOCX, PPTX, HTML or EML file"


def document_kind(content: bytes, name: str, max_bytes: int) -> str:
    """Return the kind of a document: pdf, docx, pptx, html or eml. The extension of `name` decides
    only between kinds of text. Raises ValueError if it is of no such kind, or if it has more than
    `max_bytes` once it is unpacked."""
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
    if size > max_bytes:  # zipfile never unpacks more of a member than it states
        raise ValueError(
            f"read.options.maxRowBytes: the parts of the document have {size} bytes, more than the "
            f"limit ({max_bytes}). Raise the limit, or remove large pictures from the document"
        )
    names = [member.filename for member in members]
    for folder, kind in _MAIN_PARTS.items():
        if _has(names, folder):
            return kind
    others = (what for folder, what in _OTHERS_IN_ZIP.items() if _has(names, folder))
    raise _refusal(next(others, _UNKNOWN))


def _has(names: list[str], folder: str) -> bool:
    return any(name.startswith(folder) for name in names)


def _refusal(what: str) -> ValueError:
    return ValueError(f"the file is {what}")
