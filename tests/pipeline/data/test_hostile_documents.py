"""Hostile and unreadable documents: each one is a failed row whose message says why."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugins.messages import Messages
from support.inputs.document_files import docx_with, mail_of, pdf_of, pptx_with, raw_pdf
from support.inputs.read_files import read_files

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
CATALOGUE = b"<</Type/Catalog/Pages 2 0 R>>"


def old_office(stream: str) -> bytes:
    return OLE + stream.encode("utf-16-le")


def zipped(**members: str | bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def changed(content: bytes, member: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return a zip archive with another content of a member."""
    source, buffer = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            read = source.read(name)
            archive.writestr(name, change(read) if name == member else read)
    return buffer.getvalue()


def word() -> bytes:
    return docx_with(lambda file: file.add_paragraph("text"))


def with_entities(markup: bytes) -> bytes:
    """Return markup whose only text is a file of this machine, and one that expands."""
    kind = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname"><!ENTITY a "aaaaaaaaaa">'
    kind += b"".join(b'<!ENTITY %c "%b">' % (97 + n, b"&%c;" % (96 + n) * 10) for n in range(1, 9))
    head, _, rest = markup.partition(b"?>")
    return head + b"?>" + kind + b"]>" + rest.replace(b">text<", b">&f;&i;<")


def nested(depth: int) -> bytes:
    return b"<!doctype html>" + b"<div>" * depth + b"text"


HOSTILE: dict[str, tuple[str, Callable[[], bytes], dict[str, Any]]] = {
    "empty": ("a.pdf", lambda: b"", {}),
    "cut PDF": ("a.pdf", lambda: pdf_of("text")[:300], {}),
    "encrypted PDF": ("a.pdf", lambda: pdf_of("text", encrypt="secret"), {}),
    "PDF without pages": (
        "a.pdf",
        lambda: raw_pdf(CATALOGUE, b"<</Type/Pages/Kids[]/Count 0>>"),
        {},
    ),
    "PDF of many pages": (
        "a.pdf",
        lambda: raw_pdf(
            CATALOGUE,
            b"<</Type/Pages/Kids[%b]/Count 100001>>" % (b"3 0 R " * 100_001),
            b"<</Type/Page/Parent 2 0 R>>",
        ),
        {},
    ),
    "large page": (
        "a.pdf",
        lambda: pdf_of("text", pagesize=(14_400, 14_400)),
        {"render": {"dpi": 1200}},
    ),
    "many pixels": ("a.pdf", lambda: pdf_of("text"), {"render": {"dpi": 72, "maxPixels": 1000}}),
    "large file": ("a.pdf", lambda: pdf_of("text"), {"maxRowBytes": 1024}),
    "zip bomb": ("a.docx", lambda: zipped(word__document=bytes(1 << 20)), {"maxRowBytes": 100_000}),
    "cut DOCX": ("a.docx", lambda: word()[:5000], {}),
    "entities": ("a.docx", lambda: changed(word(), "word/document.xml", with_entities), {}),
    "encrypted DOCX": ("a.docx", lambda: old_office("EncryptedPackage"), {}),
    "old Word": ("a.doc", lambda: old_office("WordDocument"), {}),
    "old PowerPoint": ("a.ppt", lambda: old_office("PowerPoint Document"), {}),
    "old Excel": ("a.xls", lambda: old_office("Workbook"), {}),
    "Outlook": ("a.msg", lambda: old_office("__properties_version1.0"), {}),
    "workbook": ("a.xlsx", lambda: zipped(xl__workbook="x"), {}),
    "text document": ("a.odt", lambda: zipped(mimetype="x", **{"META-INF__manifest": "x"}), {}),
    "archive": ("a.zip", lambda: zipped(a="x"), {}),
    "text": ("a.txt", lambda: b"some text", {}),
    "no slides": ("a.pptx", lambda: pptx_with(lambda _: None), {}),
    "deep HTML": ("a.html", lambda: nested(10_000), {}),
    "unknown encoding": ("a.html", lambda: b"<meta charset=none><p>a", {}),
    "encoding of Python": ("a.html", lambda: b"<meta charset=punycode><p>a", {}),
    "invalid encoding": ("a.html", lambda: b"<meta charset=utf-8><p>\xff", {}),
    "long headers": (
        "a.eml",
        lambda: b"From: a\nTo: b\nContent-Type: a/b; %b\n\ntext" % (b"c=d;\n " * 20_000),
        {},
    ),
    "long headers of a part": ("a.eml", lambda: mail_of("text", None, "a" * 70_000), {}),
    "cut mail": ("a.eml", lambda: mail_of("text", "<p>html", "a.pdf")[:-20], {}),
}


@pytest.mark.parametrize(("name", "content", "options"), HOSTILE.values(), ids=HOSTILE)
def test_unreadable_document_is_one_failed_row(
    name: str,
    content: Callable[[], bytes],
    options: dict[str, Any],
    tmp_path: Path,
    messages: Messages,
) -> None:
    (tmp_path / name).write_bytes(content())
    (tmp_path / "next.html").write_text("<!doctype html>next")
    outcome = read_files("documents", tmp_path / name, tmp_path / "next.html", **options)
    assert [row["text"] for row in outcome.good] == ["next"]
    assert list(outcome.bad) == [(0, 0)]
    messages.check(outcome.bad[0, 0].replace(str(tmp_path), ""))


def test_html_refers_to_nothing_that_is_fetched(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(
        '<!DOCTYPE html [<!ENTITY f SYSTEM "file:///etc/hostname">]><link rel=stylesheet '
        'href="http://127.0.0.1:9/a"><img src="http://127.0.0.1:9/b">&f; text'
    )
    (row,) = read_files("documents", path).good
    assert row["text"].endswith("&f; text")


def test_mail_in_many_parts_is_bounded(tmp_path: Path) -> None:
    head = b"".join(
        b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(3000)
    )
    (tmp_path / "a.eml").write_bytes(b"From: a\nTo: b\n" + head + b"\ntext\n")
    assert len(read_files("documents", tmp_path).bad) == 1
