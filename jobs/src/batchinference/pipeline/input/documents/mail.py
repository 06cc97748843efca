"""Reads e-mails (EML)."""

from __future__ import annotations

import email
import re
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from email.policy import EmailPolicy
from typing import cast

from batchinference.pipeline.input.documents import Document, Element, Page
from batchinference.pipeline.input.documents.markup import decoded, html_document, stated_encoding
from batchinference.spec.read import DocumentOptions

MAX_HEADER_BYTES, MAX_CONTENT_BYTES = 64 << 10, 4 << 10
_EMPTY_LINES = re.compile(r"\n[ \t]*\n\s*")


class _BoundedHeaders(EmailPolicy):
    """Raises ValueError for a long content header, and for content headers and subjects that are
    long together. The time to parse a header grows with the square of its length."""

    size = 0

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        is_content = name.lower().startswith("content-")
        if is_content or name.lower() == "subject":
            object.__setattr__(self, "size", self.size + len(value))
        if self.size > MAX_HEADER_BYTES or (is_content and len(value) > MAX_CONTENT_BYTES):
            raise ValueError(
                "the subject and the content headers of the e-mail have more than "
                f"{MAX_HEADER_BYTES} bytes, or a content header more than {MAX_CONTENT_BYTES}"
            )
        return name, value


def open_eml(content: bytes, options: DocumentOptions) -> Document:  # noqa: ARG001
    """Return an e-mail as one page: its plain text, or its HTML if this text is missing or blank.
    Raises an error if it cannot be read."""
    message = cast(EmailMessage, email.message_from_bytes(content, policy=_BoundedHeaders()))
    body = _body(message, "plain", "html")
    if body is not None and _is_blank(body):
        body = _body(message, "html") or body
    if defects := [*message.defects, *([] if body is None else body.defects)]:
        problem = ", ".join(type(defect).__name__.removesuffix("Defect") for defect in defects)
        raise ValueError(f"the e-mail is damaged ({problem})")
    names = [
        part.get_filename() or part.get_content_type()
        for part, is_alternative in _leaves(message)
        if part is not body and not (is_alternative and _is_text(part))
    ]
    subject = str(message["subject"] or "") or None
    document = Document(iter([Page("")]), subject) if body is None else _body_of(body, subject)
    document.attachments, document.left_out = names, document.left_out + len(names)
    return document


def _body(message: EmailMessage, *kinds: str) -> EmailMessage | None:
    return cast(EmailMessage | None, message.get_body(preferencelist=kinds))


def _is_blank(body: EmailMessage) -> bool:
    return not body.defects and not cast(bytes, body.get_payload(decode=True)).strip()


def _leaves(message: EmailMessage) -> Iterator[tuple[EmailMessage, bool]]:
    """Yield the innermost parts of an e-mail in order. True means that the part is one of several
    alternatives: the same text in several formats. An attached e-mail is one part."""
    stack = [(message, False)]
    while stack:
        part, is_alternative = stack.pop()
        if part.get_content_maintype() != "multipart" or not part.is_multipart():
            yield part, is_alternative
            continue
        is_alternative |= part.get_content_subtype() == "alternative"
        stack += [(inner, is_alternative) for inner in reversed(list(part.iter_parts()))]


def _is_text(part: EmailMessage) -> bool:
    return part.get_content_type() in ("text/plain", "text/html") and not part.is_attachment()


def _body_of(body: EmailMessage, subject: str | None) -> Document:
    content = cast(bytes, body.get_payload(decode=True))
    if body.defects:  # `get_payload` adds the defects
        raise ValueError("the text of the e-mail is damaged")
    is_html = body.get_content_subtype() == "html"
    encoding = body.get_content_charset() or (stated_encoding(content) if is_html else None)
    text = decoded(content, encoding).replace("\r\n", "\n")
    if is_html:
        return replace(html_document(text), title=subject)
    parts = (part.strip("\n") for part in _EMPTY_LINES.split(text))
    elements = [Element("paragraph", part) for part in parts if part.strip()]
    return Document(iter([Page(text, elements)]), subject)
