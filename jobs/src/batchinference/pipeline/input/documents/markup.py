"""Reads HTML, and divides markup of HTML and of Office into elements. Style sheets are ignored."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import ClassVar

from lxml import etree

from batchinference.pipeline.input.documents import Document, Element, Page
from batchinference.spec.read import DocumentOptions


class Markup:
    """A markup language. A subclass states which nodes begin an element, and the text of nodes."""

    SKIPPED: ClassVar[frozenset[str]] = frozenset()
    TABLE: ClassVar[str]
    ROW: ClassVar[str]
    CELLS: ClassVar[tuple[str, ...]]

    def kind(self, node: etree._Element) -> str | None:
        """Return the kind of the element that a node begins; None if it begins none."""
        raise NotImplementedError

    def text(self, node: etree._Element, kind: str) -> str:
        """Return a node's text before its first child. The node is in an element of this kind."""
        raise NotImplementedError

    def tail(self, node: etree._Element, kind: str) -> str:
        """Return the text after the end of a node. The node is in an element of this kind."""
        return ""

    def clean(self, text: str, kind: str) -> str:
        """Return the final text of an element of this kind."""
        return text

    def elements(self, root: etree._Element, *, cells: bool = True) -> Iterator[Element]:
        """Yield the elements with text below `root`, in document order. If `cells` is False, `root`
        is a table, and the elements in its cells are left out."""
        kinds, parts = ["paragraph"], list[str]()
        walk = etree.iterwalk(root, events=("start", "end"))
        for event, node in walk:
            skipped = node.tag in self.SKIPPED
            kind = None if skipped or node is root else self.kind(node)
            is_cell = not cells and node.tag in self.CELLS and self._has_row(node)
            if kind == "paragraph":
                kind = kinds[-1]  # a paragraph in a list item has the kind list_item
            if kind:
                yield from self._element(kinds[-1], parts)
                parts = []
            if event == "start":
                kinds += [kind] if kind else []
                if skipped or is_cell or kind == "table":
                    walk.skip_subtree()
                if kind == "table":
                    yield from self.elements(node, cells=False)
                    parts.append(self._table(node))
                elif not (skipped or is_cell):
                    parts.append(self.text(node, kinds[-1]))
            else:
                kinds = kinds[:-1] if kind else kinds
                parts.append("" if node is root else self.tail(node, kinds[-1]))
        yield from self._element(kinds[-1], parts)

    def _element(self, kind: str, parts: list[str]) -> Iterator[Element]:
        text = "".join(parts) if kind == "table" else self.clean("".join(parts), kind)
        if text.strip():
            yield Element(kind, text)

    def _table(self, table: etree._Element) -> str:
        """Return the text of a table: a line per row, with tabs between cells."""
        lines = []
        for row in (row for row in table.iter(self.ROW) if self._table_of(row) is table):
            cells = (cell for cell in row.iter(*self.CELLS) if self._table_of(cell) is table)
            lines.append("\t".join(map(self._cell, cells)))
        return "\n".join(lines)

    def _table_of(self, node: etree._Element) -> etree._Element | None:
        return next(node.iterancestors(self.TABLE), None)

    def _has_row(self, cell: etree._Element) -> bool:
        return bool(next(cell.iterancestors(self.TABLE, self.ROW)).tag == self.ROW)

    def _cell(self, cell: etree._Element) -> str:
        """Return the text of a cell on one line."""
        return " ".join(" ".join(element.text.split()) for element in self.elements(cell))


_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_PARAGRAPHS = frozenset(
    (*("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details"),
     *("dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header"),
     *("hgroup", "hr", "legend", "main", "nav", "ol", "option", "p", "section", "summary", "td"),
     *("th", "tr", "ul"))
)  # fmt: skip
_NO_TEXT = ("hidden", "checkbox", "radio", "submit", "button", "reset", "image")
"""The types of form fields (`input`) into which nobody enters a text."""
_SPACES, _AROUND_LINE_END = re.compile("[ \t\r\n\f]+"), re.compile(" *\n *")
_META_CHARSET = re.compile(rb"<meta[^>]{0,512}?charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.I)
_XML_ENCODING = re.compile(rb"^\s*<\?xml[^>]{0,512}?encoding\s*=\s*[\"']([\w:.-]{1,40})")
_META_BYTES = 4096
_WEB_ENCODINGS = re.compile(
    r"utf-(8|(16|32)(-[bl]e)?)|ascii|tis-620|iso8859-\d+|koi8-[ru]|cp(125\d|866|874|932|949)"
    r"|gb(2312|k|18030)|big5(hkscs)?|euc_(jp|kr)|iso2022_jp\w*|shift_jis|mac-(roman|cyrillic)"
)
"""Matches the encodings of the web, by their names in Python. Other codecs may take very long."""
_WIDE = re.compile("utf-?(16|32)")
_WESTERN = ("iso-8859-1", "latin-1", "latin1")
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class Html(Markup):
    SKIPPED = frozenset(("head", "script", "style", "noscript", "template", "iframe", "svg"))
    TABLE, ROW, CELLS = "table", "tr", ("td", "th")

    def kind(self, node: etree._Element) -> str | None:
        if node.tag in _HEADINGS:
            return "heading"
        if node.tag in _PARAGRAPHS:
            return "paragraph"
        return {"li": "list_item", "table": "table", "pre": "code"}.get(node.tag)

    def text(self, node: etree._Element, kind: str) -> str:
        return "\n" if node.tag == "br" else _spaced(node.text, kind)

    def tail(self, node: etree._Element, kind: str) -> str:
        return _spaced(node.tail, kind)

    def clean(self, text: str, kind: str) -> str:
        if kind == "code":
            return text.strip("\r\n")
        return _AROUND_LINE_END.sub("\n", re.sub(" +", " ", text)).strip(" \n")


def _spaced(text: str | None, kind: str) -> str:
    """Return a text with white space collapsed as in a browser, except in code."""
    return (text or "") if kind == "code" else _SPACES.sub(" ", text or "")


def open_html(content: bytes, options: DocumentOptions) -> Document:  # noqa: ARG001
    """Return an HTML file as one page. Raises ValueError if it cannot be read."""
    return html_document(decoded(content, stated_encoding(content)))


def html_document(text: str) -> Document:
    """Return HTML text as one page. Raises ValueError if it cannot be read."""
    parser = etree.HTMLParser(
        encoding="utf-8", huge_tree=True, no_network=True, remove_comments=True, remove_pis=True
    )
    root = etree.fromstring(text.encode(), parser)
    fatal = parser.error_log.filter_from_fatals()
    if root is None or fatal:  # lxml would silently drop the rest of the file
        problem = fatal[0].message.partition(",")[0] if fatal else "it is empty"
        raise ValueError(f"the HTML cannot be read: {problem}")
    roots = [root, *root.itersiblings("*")]  # siblings follow the end tag of the document
    for table in [table for part in roots for table in part.iter("table")]:
        for outer in table.iterancestors("table"):  # a table of tables is only layout
            outer.tag = "div"
    title = " ".join(root.findtext("head/title", "").split())
    elements = [element for part in roots for element in Html().elements(part)]
    left_out = sum(map(_left_out, roots))
    return Document(iter([Page.of(elements)]), title or None, left_out=left_out)


def _left_out(root: etree._Element) -> int:
    """Return the number of SVG pictures and form fields whose texts are in no element."""
    fields = (each for each in root.iter("input") if each.get("value"))
    count = sum(each.get("type", "").lower() not in _NO_TEXT for each in fields)
    for svg in _outermost(root, "svg"):
        texts = (t for node in _outermost(svg, "text", "foreignobject") for t in node.itertext())
        count += any(map(str.strip, texts))
    return count


def _outermost(root: etree._Element, *tags: str) -> Iterator[etree._Element]:
    """Yield the nodes with one of these tags. Nodes inside of a yielded node are left out."""
    walk = etree.iterwalk(root, ("start",), tags)
    for _, node in walk:
        walk.skip_subtree()
        yield node


def stated_encoding(content: bytes) -> str | None:
    """Return the encoding that HTML states in its first bytes; None if it states none. UTF-16
    becomes UTF-8, as in browsers, because the statement was readable as ASCII."""
    head = content[:_META_BYTES]
    stated = _META_CHARSET.search(head) or _XML_ENCODING.match(head)
    encoding = stated[1].decode().lower() if stated else None
    return "utf-8" if encoding and _WIDE.match(encoding) else encoding


def decoded(content: bytes, stated: str | None) -> str:
    """Return bytes decoded by their byte order mark, else by the stated encoding, else as UTF-8 or
    Windows-1252. Raises ValueError if the encoding is unknown, or the bytes are invalid in it."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return content.removeprefix(mark).decode(encoding)
    stated = stated and stated.lower()
    try:
        if stated in _WESTERN:  # as in browsers
            return content.decode("cp1252")
        encoding = codecs.lookup(stated or "utf-8").name
        if not _WEB_ENCODINGS.fullmatch(encoding):
            raise LookupError
        return content.decode(encoding)
    except LookupError:
        raise ValueError(f"the document states an unknown encoding ({stated})") from None
    except UnicodeDecodeError:
        if stated:
            raise
        return content.decode("cp1252")
