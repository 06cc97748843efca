"""Compares PDF files -> pages -> chunks -> MiniLM -> Parquet with Ray Data and Daft, by hand.

    python tests/bench/documents.py        10,000 files (times BENCH_SIZE), BENCH_ROUNDS rounds
    python tests/bench/documents.py 100    100 files

Each file has one page, and each tenth three. All sides read them with PDFium, divide the pages with
the same function and compute with as many processes as CPUs. The whole times from start to end are
compared, and all sides must have written equal rows. Without Daft, its side is left out. To install
it elsewhere: `python -m pip install --target DIRECTORY daft` and PYTHONPATH=DIRECTORY.
"""

from __future__ import annotations

import importlib.util
import io
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import yaml
from pypdfium2 import PdfDocument
from reportlab.pdfgen.canvas import Canvas
from rounds import ROUNDS, sized
from stop_signals import exit_on_signals
from texts import BATCH, MODEL, sample_texts
from throughput import run

from batchinference.pipeline.text_chunks import Splitter, words
from support.documents.minimal import document

HERE = Path(__file__).parent
FILES, LINES, MANY_PAGES = sized(10_000), 3, 10
SIZE = 40
"""Words of a chunk."""
LIMIT, NOISE = 1.0, 0.1
TOLERANCE = 1e-4
SPLIT = Splitter(words, SIZE)


def write_files(directory: Path, count: int) -> None:
    """Write PDF files with pages of a few lines of prose."""
    lines = iter(sample_texts((count + 2 * len(range(0, count, MANY_PAGES))) * LINES))
    for number in range(count):
        buffer = io.BytesIO()
        canvas = Canvas(buffer, invariant=True)
        for _ in range(1 if number % MANY_PAGES else 3):
            for line in range(LINES):
                canvas.drawString(72, 720 - 14 * line, next(lines))
            canvas.showPage()
        canvas.save()
        (directory / f"{number:05d}.pdf").write_bytes(buffer.getvalue())


def chunks_of(content: bytes) -> list[tuple[int, int, str]]:
    """Return the chunks of a PDF file: the number of the page, that of the chunk, and its text."""
    pdf, chunks = PdfDocument(content), []
    for number in range(len(pdf)):
        text = pdf[number].get_textpage().get_text_range().replace("\r\n", "\n")
        text = text.replace("\ufffe", "-\n")  # PDFium's mark of a hyphen at the end of a line
        for index, span in enumerate(SPLIT(text)):
            chunks.append((number + 1, index, text[span.start : span.end]))
    pdf.close()
    return chunks


def job(source: Path, output: Path) -> dict[str, object]:
    model = {"runtime": "sentenceTransformers", "source": MODEL, "inputs": {"text": "text"}}
    return document(
        "documents",
        read={"format": "documents", "paths": [str(source)], "options": {"includePaths": True}},
        steps=[
            {"name": "divide", "chunk": {"column": "text", "size": SIZE, "unit": "words"}},
            {"name": "embed", "model": {**model, "output": "embedding", "normalize": True},
             "batchSize": BATCH},
        ],
        write={"format": "parquet", "path": str(output)},
    )  # fmt: skip


def command(side: str, source: Path, output: Path, work: Path) -> list[str]:
    if side != "ours":
        file = str(HERE / f"{side}.py")
        return [sys.executable, file, str(source), str(output), str(os.cpu_count())]
    (work / "job.yaml").write_text(yaml.safe_dump(job(source, output)))
    return [str(Path(sys.executable).with_name("batchinference")), "run", str(work / "job.yaml")]


def rows_of(output: Path) -> pa.Table:
    """Return the rows that a side has written, in the order of files, pages and chunks."""
    table = pads.dataset(output, exclude_invalid_files=True, format="parquet").to_table()
    names = pc.utf8_slice_codeunits(table.column("path").cast(pa.string()), -len("00000.pdf"))
    table = table.set_column(table.column_names.index("path"), "path", names)
    keys = ["path", "page", "chunk_index"]
    return table.select([*keys, "text", "embedding"]).sort_by([(key, "ascending") for key in keys])


def check_equal(rows: pa.Table, expected: pa.Table) -> None:
    """Raise SystemExit unless two sides have equal rows, and about equal embeddings."""
    for name in ("path", "page", "chunk_index", "text"):
        if rows.column(name).to_pylist() != expected.column(name).to_pylist():
            raise SystemExit(f"the sides differ in the column {name}")
    vectors = [np.array(table.column("embedding").to_pylist()) for table in (rows, expected)]
    if not np.allclose(*vectors, atol=TOLERANCE):
        raise SystemExit("the sides differ in the embeddings")


def main() -> None:
    sides = ["ours", "peer_documents", "peer_documents_daft"]
    if importlib.util.find_spec("daft") is None:
        print("documents: Daft is not installed, so its side is left out")
        sides.pop()
    seconds = defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "in"
        source.mkdir()
        write_files(source, int(sys.argv[1]) if sys.argv[1:] else FILES)
        expected: pa.Table | None = None
        for number in range(ROUNDS):
            for side in sides:
                output, began = Path(directory) / f"{side}-{number}", time.monotonic()
                run(command(side, source, output, Path(directory)))
                seconds[side].append(time.monotonic() - began)
                rows = rows_of(output)
                expected = expected or rows
                check_equal(rows, expected)
                last = seconds[side][-1]
                print(f"documents {number + 1}: {side} {last:.1f} s, {len(rows)} rows", flush=True)
    medians = {side: statistics.median(each) for side, each in seconds.items()}
    ratios = {side: medians[side] / medians["ours"] for side in sides[1:]}
    for side, ratio in ratios.items():
        print(f"documents {side} ratio={ratio:.3f} limit={LIMIT}")
    if slow := [side for side, ratio in ratios.items() if ratio < LIMIT - NOISE]:
        raise SystemExit(f"below the limit: {', '.join(slow)}")


if __name__ == "__main__":
    exit_on_signals()
    main()
