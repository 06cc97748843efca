"""A job that writes the lines of text files to a table, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchinference.spec.report import Report
from support.documents.minimal import Document, document
from support.jobs.on_ray import write_lines
from support.jobs.without_ray import run_without_ray
from support.outputs.tables import table_rows, write_fields
from support.outputs.verify_command import verified

COMPUTED: list[str] = []
"""The texts that the step has computed."""


def without_x(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row unchanged; raise ValueError if its text contains an x."""
    COMPUTED.append(row["text"])
    if "x" in row["text"]:
        raise ValueError("an x")
    return row


class TextTable:
    """A table and the job that writes it. Rows with an x fail. `kind` is a format, and a mode
    other than append."""

    def __init__(self, kind: str, path: Path) -> None:
        self.format, _, mode = kind.partition(" ")
        self.folder, self.mode = path, mode or "append"
        self.output = path / "out"
        self.lines("a", ["a1", "x a2", "a3"])

    def lines(self, name: str, lines: list[str]) -> None:
        write_lines(self.folder / "in", {f"{name}.txt": lines})

    def job(self, mode: str = "", **spec: Any) -> Document:
        step: Document = {
            "name": "own",
            "python": {"callable": "support.jobs.text_table:without_x", "method": "map"},
        }
        errors = {"maxRows": 10, **spec.pop("errors", {})}
        write = {**write_fields(self.format, self.folder), "mode": mode or self.mode}
        write |= {"key": ["text"]} if write["mode"] == "merge" else {}
        read = {"format": "text", "paths": [str(self.folder / "in")]}
        return document("job", read=read, write=write, steps=[step], errors=errors, **spec)

    def run(self, mode: str = "", **spec: Any) -> Report:
        return self.run_job(self.job(mode, **spec))

    def run_job(self, job: Document) -> Report:
        return run_without_ray(job)

    def texts(self) -> list[str]:
        return sorted(row["text"] for row in table_rows(self.format, self.folder))

    def proven(self) -> bool:
        done = verified(self.output, "--trust-output")
        assert done.counts == {}, done.proof
        return done.result == "proven"
