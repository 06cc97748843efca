"""The kinds of defects that an output can have, and the report of a verification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeAlias

from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry, counts_of
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import WarningCount

MAX_POSITIONS = 1000
"""Maximum number of listed positions for each kind of defect. All defects are counted."""
_START_OVER = "run the job again with write.mode overwrite"
_RESTORE = f"restore them, or {_START_OVER}"


class Kind(StrEnum):
    """A kind of defect, its meaning and its fix."""

    meaning: str
    fix: str

    def __new__(cls, value: str, meaning: str, fix: str) -> Self:
        kind = str.__new__(cls, value)
        kind._value_, kind.meaning, kind.fix = value, meaning, fix
        return kind

    MISSING = (
        "missing",
        "input rows that are neither in the output nor in the errors",
        _START_OVER,
    )
    DUPLICATED = ("duplicated", "rows that are in the output more than once", _START_OVER)
    MISSING_KEYS = (
        "missingKeys",
        "keys of rows of the job that the table does not have any more",
        f"if nobody has deleted these rows, {_RESTORE}",
    )
    REPEATED_KEYS = (
        "repeatedKeys",
        "keys of rows of the job that several rows of the table have",
        "remove the rows that are too many from the table",
    )
    UNKNOWN_ROWS = (
        "unknownRows",
        "rows in the output that the input does not have",
        f"if the input was replaced, restore it, or {_START_OVER}",
    )
    GONE = ("gone", "output files that are missing", _RESTORE)
    DAMAGED = ("damaged", "output files that differ from what was committed", _RESTORE)
    MISCOUNTED = ("miscounted", "commits with a wrong number of rows", _START_OVER)
    ORPHANS = (
        "orphans",
        "orphan files of the job, which readers would read as output",
        "delete them",
    )
    UNKNOWN_FILES = (
        "unknownFiles",
        "files of unknown origin, which readers would read as output",
        "move them elsewhere",
    )
    WRONG_ERRORS = (
        "wrongErrors",
        "error records that are duplicated or do not belong to the commit",
        _START_OVER,
    )
    INPUT_CHANGED = (
        "inputChanged",
        "input files that have changed since",
        f"the output has rows of their earlier content: restore them, or {_START_OVER}",
    )
    INPUT_GONE = (
        "inputGone",
        "input files that are missing now",
        "their rows cannot be compared: restore them",
    )
    INPUT_TWICE = ("inputTwice", "input files that a later append has read again", _START_OVER)
    REPORT = (
        "report",
        "counts in the report that differ from the files",
        "rely on the files, not on the report",
    )
    STATE = ("state", "state files that are damaged", _RESTORE)
    NO_COMMIT = (
        "noCommit",
        "commits that the table does not contain",
        "if its rows were not replaced and its history is complete, remove "
        "_batchinference below the output and run the job again",
    )


@dataclass(frozen=True)
class Position:
    """Where a defect is."""

    file: str
    rows: tuple[int, int | None] | None = None
    """The first and the last row of a defect of rows. The last row is None if it is unknown."""
    detail: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self._rows(), self.detail)))

    def _rows(self) -> str:
        if self.rows is None:
            return ""
        first, last = self.rows
        if first == last:
            return f"row {first}"
        return f"rows {first} and on" if last is None else f"rows {first} to {last}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields for JSON, without fields that do not apply."""
        rows = {} if self.rows is None else dict(zip(("first", "last"), self.rows, strict=True))
        return {"file": self.file, **rows, **({"detail": self.detail} if self.detail else {})}


@dataclass
class Finding:
    """All defects of one kind."""

    kind: Kind
    count: int = 0
    positions: list[Position] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the fields for JSON, with the meaning and the fix of the kind."""
        positions = [position.as_json() for position in self.positions]
        texts = {"meaning": self.kind.meaning, "fix": self.kind.fix}
        return {"kind": self.kind.value, "count": self.count, **texts, "where": positions}


Defect: TypeAlias = tuple[Kind, Position, int]
"""A kind of defect, its position, and the number of rows or files that it affects."""


def findings_of(defects: Iterable[Defect]) -> list[Finding]:
    """Return one finding for each kind of defect that occurs, in the order of `Kind`."""
    by_kind: dict[Kind, Finding] = {}
    for kind, position, count in defects:
        finding = by_kind.setdefault(kind, Finding(kind))
        finding.count += count
        if len(finding.positions) < MAX_POSITIONS:
            finding.positions.append(position)
    return [by_kind[kind] for kind in Kind if kind in by_kind]


class Result(StrEnum):
    PROVEN = "proven"
    UNFINISHED = "unfinished"
    NOT_PROVEN = "notProven"


@dataclass(frozen=True)
class Committed:
    """The files that manifest entries name, and the counts of their rows."""

    counts: Counts = field(default_factory=Counts)
    data: list[DataFile] = field(default_factory=list)
    errors: list[DataFile] = field(default_factory=list)

    @classmethod
    def of(cls, entries: Sequence[ManifestEntry]) -> Committed:
        """Return the files and the counts of these entries."""
        data = [file for entry in entries for file in entry.data]
        return cls(counts_of(entries), data, [entry.errors for entry in entries if entry.errors])

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in (*self.data, *self.errors))

    def as_json(self) -> dict[str, Any]:
        """Return the counts, the numbers of files and their size for JSON."""
        counts = {name: getattr(self.counts, name) for name in ("written", "failed", "filtered")}
        files = {"dataFiles": len(self.data), "errorFiles": len(self.errors), "bytes": self.bytes}
        return {**counts, **files}


@dataclass(frozen=True)
class JobReport:
    """The result for one job that has written to the output."""

    state: str
    finished: bool = False
    rows: int | None = None
    """The number of input rows; None if it is unknown."""
    accounted: int = 0
    """The number of input rows that were written, failed or filtered."""
    input_files: int = 0
    input_files_counted: int = 0
    """The number of files whose rows were counted again."""
    committed: Committed = field(default_factory=Committed)
    missing: list[Position] = field(default_factory=list)
    """The missing rows of an unfinished output."""
    findings: list[Finding] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    layout: Layout | None = None
    """None if the state is damaged, or if a run has only claimed the output."""
    names: Sequence[str] = ()
    """The names of the input files, without files whose rows were removed."""
    warnings: Sequence[WarningCount] = ()

    @property
    def key(self) -> str:
        """The key of the job (see `output_paths`); empty if unknown."""
        return self.layout.key if self.layout else ""

    @property
    def result(self) -> Result:
        """The result for this job alone."""
        if self.findings:
            return Result.NOT_PROVEN
        return Result.PROVEN if self.finished else Result.UNFINISHED

    def as_json(self) -> dict[str, Any]:
        """Return the fields for JSON, with at most MAX_POSITIONS missing row ranges."""
        return {
            "state": self.state,
            "result": self.result.value,
            "finished": self.finished,
            "rows": self.rows,
            "accountedRows": self.accounted,
            "inputFiles": self.input_files,
            "inputFilesCounted": self.input_files_counted,
            "committed": self.committed.as_json(),
            "missing": [position.as_json() for position in self.missing[:MAX_POSITIONS]],
            "findings": [finding.as_json() for finding in self.findings],
            "unproven": self.unproven,
            "warnings": [
                warning.model_dump(mode="json", by_alias=True, exclude_none=True)
                for warning in self.warnings
            ],
        }


@dataclass(frozen=True)
class VerificationReport:
    """The result for an output: a report for each job that has written to it."""

    output: str
    jobs: list[JobReport]
    findings: list[Finding]
    """Defects that affect several jobs, or no job."""

    @property
    def result(self) -> Result:
        """The worst result of a job; `notProven` if there are findings about several jobs."""
        results = {job.result for job in self.jobs}
        if self.findings or Result.NOT_PROVEN in results:
            return Result.NOT_PROVEN
        return Result.UNFINISHED if Result.UNFINISHED in results else Result.PROVEN

    def as_json(self) -> dict[str, Any]:
        """Return the report for `verify --output json`."""
        return {
            "output": self.output,
            "result": self.result.value,
            "jobs": [job.as_json() for job in self.jobs],
            "findings": [finding.as_json() for finding in self.findings],
        }
