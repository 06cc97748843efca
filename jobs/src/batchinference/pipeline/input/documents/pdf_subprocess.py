"""Reads a PDF file in a subprocess: if PDFium crashes, only the subprocess ends. A subprocess that
takes too long for a page is killed.

Each start takes time, so only rows at which a process has died before are read in this way."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Timer
from typing import IO, TYPE_CHECKING, Any, cast

from batchinference.pipeline.input.documents import Document

if TYPE_CHECKING:
    from batchinference.spec.read import DocumentOptions


MAX_SECONDS = 60
"""The maximum time to open a file, and to read a page."""


def open_pdf(content: bytes, options: DocumentOptions) -> Document:
    """Return a document like `pdf.open_pdf`. If the subprocess dies or takes too long, the
    remaining pages are one error."""
    answers = _answers(content, options)
    document = next(answers)
    if isinstance(document, Exception):
        raise document
    return replace(cast(Document, document), pages=answers)


def _answers(content: bytes, options: DocumentOptions) -> Iterator[Any]:
    """Yield the document without pages, and then its pages. If the process dies, yield an error."""
    command = [sys.executable, "-m", __name__]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:  # noqa: S603
        requests, answers = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        try:
            with suppress(BrokenPipeError), requests:
                pickle.dump((content, options), requests)
            while (answer := _within_limit(answers, process)) is not None:
                yield answer
        except (EOFError, pickle.UnpicklingError):
            yield ValueError(
                f"the process that read only this file died (exit code {process.wait()}): native "
                f"code crashed, memory ran out, or a page took more than {MAX_SECONDS} seconds"
            )
        finally:
            process.kill()


def _within_limit(answers: IO[bytes], process: subprocess.Popen[bytes]) -> Any:
    """Return the next answer. Kills the process if there is none after MAX_SECONDS."""
    timer = Timer(MAX_SECONDS, process.kill)
    timer.start()
    try:
        return pickle.load(answers)  # noqa: S301 - from our own process
    finally:
        timer.cancel()


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    from batchinference.pipeline.input.documents import pdf

    content, options = pickle.load(requests)  # noqa: S301 - from our own process
    try:
        document = pdf.open_pdf(content, options)
        first: list[Any] = [replace(document, pages=iter(()))]
        for answer in itertools.chain(first, document.pages, [None]):
            pickle.dump(answer, answers)
            answers.flush()
    except ValueError as error:
        pickle.dump(error, answers)
        answers.flush()


if __name__ == "__main__":
    own_answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    _serve(sys.stdin.buffer, own_answers)
