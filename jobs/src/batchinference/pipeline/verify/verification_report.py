"""The results of a verification, in machine-readable form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.commit.manifest_entry import (
    DataFile,
    ManifestEntry,
    RowCounts,
    counts_of,
)
from batchinference.pipeline.verify.findings import MAX_SPOTS, Finding, Spot


class Result(StrEnum):
    PROVEN = "proven"
    UNFINISHED = "unfinished"
    NOT_PROVEN = "notProven"


@dataclass(frozen=True)
class Committed:
    """The files that count, and the counts of the rows that they represent."""

    counts: RowCounts = field(default_factory=RowCounts)
    data: list[DataFile] = field(default_factory=list)
    errors: list[DataFile] = field(default_factory=list)

    @classmethod
    def of(cls, entries: Sequence[ManifestEntry]) -> Committed:
        data = [file for entry in entries for file in entry.data]
        return cls(counts_of(entries), data, [entry.errors for entry in entries if entry.errors])

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in (*self.data, *self.errors))

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self.counts, name) for name in ("written", "failed", "skipped")}
        files = {"dataFiles": len(self.data), "errorFiles": len(self.errors), "bytes": self.bytes}
        return {**counts, **files}


@dataclass(frozen=True)
class Input:
    """The number of files of an input, or of parts of another source, and how many were counted
    again."""

    files: int = 0
    counted: int = 0


@dataclass(frozen=True)
class JobReport:
    """The result for the work of one job. `rows` is the number of input rows; None if it is
    unknown. `held` is the number of these rows that are in the output or the errors. `missing`
    lists the missing rows of an unfinished output. `unproven` describes what could not be verified.
    `layout` is None if not even the work is known. `names` are the names of its input files."""

    state: str
    finished: bool = False
    rows: int | None = None
    held: int = 0
    input: Input = field(default_factory=Input)
    committed: Committed = field(default_factory=Committed)
    missing: list[Spot] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    layout: Layout | None = None
    names: Sequence[str] = ()

    @property
    def key(self) -> str:
        return self.layout.key if self.layout else ""

    @property
    def result(self) -> Result:
        if self.findings:
            return Result.NOT_PROVEN
        return Result.PROVEN if self.finished else Result.UNFINISHED

    def as_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "result": self.result.value,
            "finished": self.finished,
            "rows": self.rows,
            "held": self.held,
            "inputFiles": self.input.files,
            "inputFilesCounted": self.input.counted,
            "committed": self.committed.as_json(),
            "missing": [spot.as_json() for spot in self.missing[:MAX_SPOTS]],
            "findings": [finding.as_json() for finding in self.findings],
            "unproven": self.unproven,
        }


@dataclass(frozen=True)
class VerificationReport:
    """The result for an output: one report for each job that has written to it, and the findings on
    all files together."""

    output: str
    works: list[JobReport]
    findings: list[Finding]

    @property
    def result(self) -> Result:
        results = {work.result for work in self.works}
        if self.findings or Result.NOT_PROVEN in results:
            return Result.NOT_PROVEN
        return Result.UNFINISHED if Result.UNFINISHED in results else Result.PROVEN

    def as_json(self) -> dict[str, Any]:
        return {
            "output": self.output,
            "result": self.result.value,
            "jobs": [work.as_json() for work in self.works],
            "findings": [finding.as_json() for finding in self.findings],
        }
