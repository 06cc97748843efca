"""The images and documents that the jobs of docs/formats.md read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from support.inputs.document_files import docx_with, mail_of, pdf_of, pptx_with
from support.inputs.media_files import saved


def write_media(folder: Path) -> None:
    """Write the files below a folder."""
    for name in ("x-rays", "scans", "papers"):
        (folder / name).mkdir()
    values = np.linspace(0, 4095, 64).reshape(8, 8).astype(np.uint16)
    (folder / "x-rays/a.tif").write_bytes(saved(Image.fromarray(values), "TIFF"))
    pages = [Image.new("RGB", (30, 40), colour) for colour in ("white", "gray", "black")]
    scan = saved(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    (folder / "scans/a.tif").write_bytes(scan)
    write_papers(folder / "papers")


def write_papers(folder: Path) -> None:
    """Write a document of each kind, a page without text and an encrypted file."""

    def slide(file: Any) -> None:
        file.slides.add_slide(file.slide_layouts[5]).shapes.title.text = "A slide"

    (folder / "a.pdf").write_bytes(pdf_of("the first page of a paper", " ", "the last page"))
    (folder / "b.docx").write_bytes(docx_with(lambda file: file.add_paragraph("a letter")))
    (folder / "c.pptx").write_bytes(pptx_with(slide))
    (folder / "d.html").write_text("<!doctype html><title>Page</title><p>a web page")
    (folder / "e.eml").write_bytes(mail_of("a mail\n", None, "a.pdf"))
    (folder / "f.pdf").write_bytes(pdf_of("unknown", encrypt="secret"))
