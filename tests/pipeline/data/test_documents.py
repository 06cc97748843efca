"""The format `documents`: pages and elements of PDF, DOCX, PPTX, HTML and EML files."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pypdfium2
import pytest
from docx.oxml import OxmlElement
from lxml import etree

from batchinference.pipeline.input import AFTER_CRASH
from batchinference.pipeline.input.documents import pdf_subprocess
from batchinference.pipeline.input.documents.markup import html_document
from batchinference.spec import SpecError, parse
from support.documents.minimal import document
from support.inputs.document_files import (
    LINE,
    docx_with,
    mail_of,
    pdf_of,
    pdf_with,
    pptx_with,
    raw_pdf,
    stream,
)
from support.inputs.read_files import Outcome, open_input, read_files

HTML = "<!doctype html>"


def read(folder: Path, name: str, content: bytes | str, **options: Any) -> Outcome:
    """Write a document into a folder, and read it."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_files("documents", path, **options)


def texts(outcome: Outcome) -> list[str]:
    assert outcome.bad == {}
    return [row["text"] for row in outcome.good]


def elements(folder: Path, name: str, content: bytes | str) -> list[tuple[str, str]]:
    """Return the kinds and the texts of the elements of a document."""
    outcome = read(folder, name, content, rows="element")
    assert outcome.bad == {}
    assert [row["element_index"] for row in outcome.good] == [*range(len(outcome.good))]
    return [(row["kind"], row["text"]) for row in outcome.good]


def equation(text: str, divisor: str | None = None) -> Any:
    """Return the markup of an equation in Office, such as a fraction."""
    run = "<m:r><m:t>{}</m:t></m:r>"
    inner = run.format(text)
    if divisor:
        inner = f"<m:f><m:num>{inner}</m:num><m:den>{run.format(divisor)}</m:den></m:f>"
    space = "http://schemas.openxmlformats.org/officeDocument/2006/math"
    return etree.fromstring(f'<m:oMath xmlns:m="{space}">{inner}</m:oMath>')


class TestPdf:
    def test_each_page_is_a_row(self, tmp_path: Path) -> None:
        outcome = read(tmp_path, "a.pdf", pdf_of("one\ntwo", "three"))
        assert [(row["page"], row["text"]) for row in outcome.good] == [
            (1, "one\ntwo"),
            (2, "three"),
        ]
        assert outcome.ends == {0: 2}

    def test_text_is_as_on_the_page(self, tmp_path: Path) -> None:
        """Characters beyond 16 bits, characters outside of the page, and a word over two lines."""
        mapping = b"1 begincodespacerange <00> <FF> endcodespacerange\n"
        mapping += b"1 beginbfchar <41> <D83DDE00> endbfchar"
        drawn = b"BT /F 9 Tf 72 700 Td (A ex-) Tj 0 -30 Td (ample) Tj 700 0 Td (far) Tj ET"
        content = raw_pdf(
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 4 0 R>>>>"
            b"/Contents 6 0 R>>",
            b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 5 0 R>>",
            stream(mapping),
            stream(drawn),
        )
        assert texts(read(tmp_path, "a.pdf", content)) == ["\U0001f600 ex-\nample far"]

    def test_blocks_have_their_boxes_from_the_top_left_corner(self, tmp_path: Path) -> None:
        content = pdf_of("one\ntwo\n\n\nthree", pagesize=(400, 800))
        outcome = read(tmp_path, "a.pdf", content, rows="element")
        assert texts(outcome) == ["one\ntwo", "three"]
        (left, top, right, bottom), after = (row["box"] for row in outcome.good)
        assert 72 <= left < 74
        assert 80 - 12 < top < 80 - 5
        assert right - left < 30
        assert bottom == pytest.approx(80 + LINE, abs=3)
        assert after[1] - top == pytest.approx(4 * LINE, abs=2)

    def test_lines_beside_each_other_or_of_other_sizes_are_other_blocks(
        self, tmp_path: Path
    ) -> None:
        def draw(canvas: Any) -> None:
            canvas.setFontSize(24)
            canvas.drawString(72, 716, "Title")
            canvas.setFontSize(12)
            canvas.drawString(72, 700, "text")
            canvas.drawString(300, 686, "column")

        assert elements(tmp_path, "a.pdf", pdf_with([draw])) == [
            ("block", "Title"), ("block", "text"), ("block", "column")
        ]  # fmt: skip

    def test_boxes_of_turned_pages_are_as_the_page_is_shown(self, tmp_path: Path) -> None:
        def draw(canvas: Any) -> None:
            canvas.setPageRotation(90)
            canvas.drawString(10, 20, "turned")

        content = pdf_with([draw], pagesize=(400, 800))
        (row,) = read(tmp_path, "a.pdf", content, rows="element").good
        left, top, right, bottom = row["box"]
        assert left == pytest.approx(20, abs=4)
        assert top == pytest.approx(10, abs=2)
        assert bottom - top > right - left

    def test_rendered_page_is_an_image(self, tmp_path: Path) -> None:
        def draw(canvas: Any) -> None:
            canvas.setFillColorRGB(1, 0, 0)
            canvas.rect(0, 36, 36, 36, stroke=0, fill=1)

        outcome = read(tmp_path, "a.pdf", pdf_with([draw], pagesize=(72, 72)), render={"dpi": 100})
        (image,) = outcome.column("image")
        assert (image.shape, image.dtype) == ((100, 100, 3), np.uint8)
        assert image[25, 25].tolist() == [255, 0, 0]
        assert image[75, 75].tolist() == [255, 255, 255]

    def test_values_of_forms_are_rendered(self, tmp_path: Path) -> None:
        def draw(canvas: Any) -> None:
            canvas.acroForm.textfield(value="MMMM", width=60, height=30, x=5, y=5)

        content = pdf_with([draw], pagesize=(72, 72))
        (image,) = read(tmp_path, "a.pdf", content, render={"dpi": 72}).column("image")
        assert image.min() < 100

    def test_page_without_text_is_counted(self, tmp_path: Path) -> None:
        for rows in ("page", "element"):
            outcome = read(tmp_path, "a.pdf", pdf_of("text", " "), rows=rows)
            assert len(outcome.good) == 2
            assert outcome.warnings == {(0, 1): {"NoText": 0}}

    def test_attached_files_are_named_and_counted(self, tmp_path: Path) -> None:
        file = pypdfium2.PdfDocument(pdf_of("text"))
        file.new_attachment("data.csv").set_data(b"1")
        file.save(tmp_path / "a.pdf")
        outcome = read_files("documents", tmp_path)
        assert [row["attachments"] for row in outcome.good] == [["data.csv"]]
        assert outcome.warnings == {(0, 0): {"PartsIgnored": 1}}

    def test_values_of_forms_and_notes_are_counted(self, tmp_path: Path) -> None:
        def draw(canvas: Any) -> None:
            canvas.drawString(72, 720, "text")
            for value in ("a", ""):
                canvas.acroForm.textfield(name=f"field{value}", value=value)
            for checked in (True, False):
                canvas.acroForm.checkbox(name=f"box{checked}", checked=checked)
            canvas.textAnnotation("note", [9, 9, 50, 50])
            canvas.linkURL("https://example.com", (0, 0, 9, 9))

        outcome = read(tmp_path, "a.pdf", pdf_with([str, draw]))
        assert outcome.warnings == {(0, 0): {"NoText": 0}, (0, 1): {"PartsIgnored": 3}}

    def test_page_that_cannot_be_read_is_a_failed_row(self, tmp_path: Path) -> None:
        page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>"
        content = raw_pdf(
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R 4 0 R 3 0 R]/Count 3>>",
            page,
            b"null",
        )
        outcome = read(tmp_path, "a.pdf", content)
        assert [row["page"] for row in outcome.good] == [1, 3]
        assert "page 2" in outcome.bad[0, 1]

    def test_estimated_number_of_pages(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pdf"
        path.write_bytes(pdf_of("one", "two", "three"))
        count = open_input("documents", path).given.count()
        assert count is not None
        assert (count.rows, count.estimated) == (3, True)

    def test_limit_counts_pages(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pdf"
        path.write_bytes(pdf_of("one", "two", "three"))
        opened = open_input("documents", path, limit=2)
        assert opened.given.first_rows(2, {}) == {0: [(0, 2)]}


class TestWord:
    def test_elements_have_kinds(self, tmp_path: Path) -> None:
        def write(file: Any) -> None:
            file.add_heading("Chapter", 1)
            file.add_paragraph("Some\ttext")
            file.add_paragraph("an item", style="List Bullet")
            table = file.add_table(2, 2)
            for number, text in enumerate(("a\nb", "c", "", "d")):
                table.cell(number // 2, number % 2).text = text
            file.add_paragraph("the end")

        assert elements(tmp_path, "a.docx", docx_with(write)) == [
            ("heading", "Chapter"),
            ("paragraph", "Some\ttext"),
            ("list_item", "an item"),
            ("table", "a b\tc\n\td"),
            ("paragraph", "the end"),
        ]

    def test_text_in_controls_and_insertions_is_read_but_not_deleted_text(
        self, tmp_path: Path
    ) -> None:
        def write(file: Any) -> None:
            for tag in ("w:ins", "w:sdt", "w:del"):
                paragraph = file.add_paragraph(tag)
                outer = OxmlElement(tag)
                outer.append(paragraph.add_run(" more")._r)
                paragraph._p.append(outer)

        content = docx_with(write)
        assert texts(read(tmp_path, "a.docx", content)) == ["w:ins more\n\nw:sdt more\n\nw:del"]

    def test_nested_table_is_in_the_cell_of_the_outer_one(self, tmp_path: Path) -> None:
        def write(file: Any) -> None:
            cell = file.add_table(1, 2).cell(0, 0)
            cell.text = "outer"
            cell.add_table(1, 2).cell(0, 1).text = "inner"

        ((kind, text),) = elements(tmp_path, "a.docx", docx_with(write))
        assert (kind, text) == ("table", "outer inner\t")

    def test_headers_are_left_out_and_counted(self, tmp_path: Path) -> None:
        def write(file: Any) -> None:
            file.core_properties.title = "Report"
            file.add_paragraph("body")
            file.sections[0].header.paragraphs[0].text = "header"
            file.sections[0].footer.paragraphs[0].text = "footer"

        outcome = read(tmp_path, "a.docx", docx_with(write))
        (row,) = outcome.good
        assert row == {"page": None, "text": "body", "title": "Report", "attachments": []}
        assert outcome.warnings == {(0, 0): {"PartsIgnored": 2}}

    def test_equations_are_text_and_other_markup_is_counted(self, tmp_path: Path) -> None:
        def write(file: Any) -> None:
            paragraph = file.add_paragraph("a ")
            paragraph._p.extend([equation("b"), equation("c", "d")])
            paragraph.add_run()._r.append(OxmlElement("w:sym"))
            paragraph._p.addnext(OxmlElement("w:altChunk"))

        outcome = read(tmp_path, "a.docx", docx_with(write))
        assert texts(outcome) == ["a bc d"]
        assert outcome.warnings == {(0, 0): {"PartsIgnored": 3}}


class TestSlides:
    def test_equations_are_text_whose_layout_is_counted(self, tmp_path: Path) -> None:
        def write(file: Any) -> None:
            for divided in ((), ("d",)):
                slide = file.slides.add_slide(file.slide_layouts[5])
                slide.shapes.title.text = "a "
                slide.shapes.title.text_frame.paragraphs[0]._p.append(equation("b", *divided))

        outcome = read(tmp_path, "a.pptx", pptx_with(write))
        assert texts(outcome) == ["a b", "a b d"]
        assert outcome.warnings == {(0, 1): {"PartsIgnored": 1}}

    def test_each_slide_is_a_row_with_its_notes(self, tmp_path: Path) -> None:
        def write(file: Any) -> None:
            slide = file.slides.add_slide(file.slide_layouts[1])
            slide.shapes.title.text = "Title"
            slide.placeholders[1].text = "one\ntwo"
            slide.notes_slide.notes_text_frame.text = "say this"
            file.slides.add_slide(file.slide_layouts[6])

        content = pptx_with(write)
        outcome = read(tmp_path, "a.pptx", content)
        assert [row["page"] for row in outcome.good] == [1, 2]
        assert texts(outcome) == ["Title\n\none\n\ntwo\n\nsay this", ""]
        assert outcome.warnings == {(0, 1): {"NoText": 0}}
        assert elements(tmp_path, "a.pptx", content) == [
            ("heading", "Title"), ("paragraph", "one"), ("paragraph", "two"), ("note", "say this"),
            ("page", ""),
        ]  # fmt: skip

    def test_tables_and_groups_are_read(self, tmp_path: Path) -> None:
        def write(file: Any) -> None:
            shapes = file.slides.add_slide(file.slide_layouts[6]).shapes
            table = shapes.add_table(1, 2, 0, 0, 10, 10).table
            table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
            shapes.add_group_shape().shapes.add_textbox(0, 0, 9, 9).text_frame.text = "in a group"

        result = elements(tmp_path, "a.pptx", pptx_with(write))
        assert result == [("table", "a\tb"), ("paragraph", "in a group")]


class TestHtml:
    @pytest.mark.parametrize(
        ("markup", "expected"),
        [
            ("<h2>A  <b>b</b>\n c</h2>", [("heading", "A b c")]),
            ("a<br>b<p>c&nbsp; d", [("paragraph", "a\nb"), ("paragraph", "c\N{NO-BREAK SPACE} d")]),
            ("<ul><li><p>one</p><li>two</ul>", [("list_item", "one"), ("list_item", "two")]),
            ("<pre>\n  a\n    b\n</pre>", [("code", "  a\n    b")]),
            ("<table><tr><th>a<th>b<tr><td>c <p>d</table>", [("table", "a\tb\nc d")]),
            (
                "<table><tr><td>left<td><table><tr><td>1<td>2</table>after</table>",
                [("paragraph", "left"), ("table", "1\t2"), ("paragraph", "after")],
            ),
            (
                "<table><caption>title</caption>a<tr>b<td>1<td>2</td>c</tr><h3>d</h3></table>",
                [("paragraph", "title"), ("paragraph", "a"), ("paragraph", "b"), ("paragraph", "c"),
                 ("heading", "d"), ("table", "1\t2")],
            ),
            ("<table><td>no row</table>", [("paragraph", "no row")]),
            ("<html><p>a</html>tail<pre>b</pre>",
             [("paragraph", "a"), ("paragraph", "tail"), ("code", "b")]),
            ("<html><p>a</html>\n<!doctype html><html>b<table><td><table><tr><td>c</table></table>",
             [("paragraph", "a"), ("paragraph", "b"), ("table", "c")]),
            ("a<!-- b --><script>c</script><style>d</style>e", [("paragraph", "ae")]),
            ("fi \N{LATIN SMALL LIGATURE FI} a\N{SOFT HYPHEN}b",
             [("paragraph", "fi \N{LATIN SMALL LIGATURE FI} a\N{SOFT HYPHEN}b")]),
        ],
    )  # fmt: skip
    def test_elements_are_the_visible_text(
        self, tmp_path: Path, markup: str, expected: list[tuple[str, str]]
    ) -> None:
        assert elements(tmp_path, "a.html", HTML + markup) == expected

    @pytest.mark.parametrize(
        "content",
        [
            "<meta charset=cp1251><p>\u0436".encode("cp1251"),
            "<p>\u0436".encode(),
            "<p>\u0436".encode("utf-16"),
            b"<?xml version='1.0' encoding='koi8-r'?><p>" + "\u0436".encode("koi8-r"),
            "<meta charset=UTF-16><p>\u0436".encode(),
            "<?xml version='1.0' encoding='utf-32'?><p>\u0436".encode(),
        ],
    )
    def test_encoding_is_the_stated_one_or_utf_8(self, tmp_path: Path, content: bytes) -> None:
        assert texts(read(tmp_path, "a.html", content)) == ["\u0436"]

    def test_other_bytes_without_an_encoding_are_windows_1252(self, tmp_path: Path) -> None:
        assert texts(read(tmp_path, "a.html", b"<p>na\xefve \x80")) == ["naïve \u20ac"]

    def test_title_is_a_column_and_texts_in_svg_and_forms_are_counted(self, tmp_path: Path) -> None:
        html = f"{HTML}<title> A\n b</title><p>text<svg><g><text>c</text></g></svg><svg></svg>"
        html += "<svg><g>d</g></svg><input value=e><input value=f type=Submit><input>"
        for content, title in ((html, "A b"), (mail_of(html=html), "Grüße")):
            outcome = read(tmp_path, "a", content)
            assert [(row["text"], row["title"]) for row in outcome.good] == [("text", title)]
            assert outcome.warnings == {(0, 0): {"PartsIgnored": 2}}

    def test_nested_pictures_take_the_time_of_others(self) -> None:
        seconds = []
        for end in ("", "</svg>"):
            html = f"<svg>{end}" * 1000 + "<text> </text>" * 20_000
            start = time.process_time()
            assert html_document(html).left_out == 0
            seconds.append(time.process_time() - start)
        assert seconds[0] < 10 * seconds[1]


class TestMail:
    def test_plain_text_is_preferred_and_attachments_are_named(self, tmp_path: Path) -> None:
        outcome = read(tmp_path, "a.eml", mail_of("Hallo Jürgen\n", "<p>other", "a.pdf", "b.pdf"))
        (row,) = outcome.good
        assert row == {"page": None, "text": "Hallo Jürgen\n", "title": "Grüße",
                       "attachments": ["a.pdf", "b.pdf"]}  # fmt: skip
        assert outcome.warnings == {(0, 0): {"PartsIgnored": 2}}

    def test_html_is_read_without_plain_text(self, tmp_path: Path) -> None:
        assert texts(read(tmp_path, "a.eml", mail_of(html="<p>one<p>two"))) == ["one\n\ntwo"]

    def test_encoding_of_html_is_the_one_of_the_mail_or_its_own(self, tmp_path: Path) -> None:
        html = "<meta charset=koi8-r><p>\u0436"
        for kind, encoding in (("text/html", "koi8-r"), ("text/html; charset=cp1251", "cp1251")):
            content = f"Subject: a\nFrom: b\nContent-Type: {kind}\n\n{html}".encode(encoding)
            assert texts(read(tmp_path, "a.eml", content)) == ["\u0436"]

    def test_html_is_read_if_the_plain_text_is_blank(self, tmp_path: Path) -> None:
        outcome = read(tmp_path, "a.eml", mail_of(" \n\n", "<p>text"))
        assert texts(outcome) == ["text"]
        assert outcome.warnings == {}

    def test_paragraphs_are_elements(self, tmp_path: Path) -> None:
        result = elements(tmp_path, "a.eml", mail_of("one\nline\n\ntwo\n"))
        assert result == [("paragraph", "one\nline"), ("paragraph", "two")]

    def test_only_attachments_leave_no_text(self, tmp_path: Path) -> None:
        outcome = read(tmp_path, "a.eml", mail_of(None, None, "a.pdf"))
        assert outcome.warnings == {(0, 0): {"NoText": 0, "PartsIgnored": 1}}


def test_rows_of_all_kinds_have_the_same_types(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf_of("text"))
    (tmp_path / "b.html").write_text(HTML + "text")
    for options in ({}, {"rows": "element"}, {"render": {}}):
        outcome = read_files("documents", tmp_path, **options)
        assert len(outcome.good) == 2
        reader = open_input("documents", tmp_path, **options).file_rows.reader
        assert reader.columns() == outcome.schema.names
        assert all(outcome.schema.field(name).type == kind for name, kind in reader.types().items())


def test_other_documents_have_no_image(tmp_path: Path) -> None:
    outcome = read(tmp_path, "a.html", HTML + "text", render={})
    assert outcome.good[0].get("image") is None
    assert outcome.warnings == {(0, 0): {"NotRendered": 0}}


def test_render_is_only_for_pages(messages: Any) -> None:
    options = {"rows": "element", "render": {}}
    with messages.raises(SpecError):
        parse(document(read={"format": "documents", "paths": ["a"], "options": options}))


def read_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, page_2: str, *contents: bytes
) -> Outcome:
    """Read PDF files in processes of their own, which evaluate `page_2` for the second page."""
    (folder / "sitecustomize.py").write_text(
        "import ctypes, signal, sys\n"
        f"sys.path.append({str(Path(__file__).parents[2])!r})\n"
        "from batchinference.pipeline.input.documents import pdf\n"
        "original = pdf._page\n"
        "pdf._page = lambda page, number, options: (\n"
        f"    {page_2} if number == 2 else original(page, number, options))\n"
    )
    monkeypatch.syspath_prepend(folder)
    inputs = folder / "in"
    inputs.mkdir()
    for number, content in enumerate(contents):
        (inputs / f"{number}.pdf").write_bytes(content)
    token = AFTER_CRASH.set(True)
    try:
        return read_files("documents", inputs)
    finally:
        AFTER_CRASH.reset(token)


def test_crash_of_pdfium_after_a_crash_is_a_failed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the process that reads the file dies."""
    contents = pdf_of("one", "two", "three"), pdf_of("last")
    outcome = read_apart(tmp_path, monkeypatch, "ctypes.string_at(0)", *contents)
    assert [row["text"] for row in outcome.good] == ["one", "last"]
    assert list(outcome.bad) == [(0, 1)]
    assert "died" in outcome.bad[0, 1]


def test_page_that_takes_too_long_after_a_crash_is_a_failed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = []

    class ThirdEnds(Timer):
        """Kills the process that reads the file before its third answer, the second page."""

        def start(self) -> None:
            timers.append(self)
            if len(timers) == 3:
                self.function()

    monkeypatch.setattr(pdf_subprocess, "Timer", ThirdEnds)
    contents = pdf_of("one", "two", "three"), pdf_of("last")
    outcome = read_apart(tmp_path, monkeypatch, "signal.pause()", *contents)
    assert [row["text"] for row in outcome.good] == ["one", "last"]
    assert list(outcome.bad) == [(0, 1)]
    assert {timer.interval for timer in timers} == {pdf_subprocess.MAX_SECONDS}


def test_other_process_gives_the_same_pages(tmp_path: Path) -> None:
    content = pdf_of("one", "two", "three")
    usual = read(tmp_path, "a.pdf", content, render={"dpi": 20})
    token = AFTER_CRASH.set(True)
    try:
        other = read(tmp_path, "a.pdf", content, render={"dpi": 20})
    finally:
        AFTER_CRASH.reset(token)
    assert other.table.equals(usual.table)
