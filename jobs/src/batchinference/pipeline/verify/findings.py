"""The defects that an output can have: kinds, counts, locations and remedies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

MAX_SPOTS = 1000
"""Maximum number of locations that are listed per kind. All of them are counted."""
_ANEW = "run the job again with write.mode overwrite"
_BACK = f"restore them, or {_ANEW}"


class Kind(StrEnum):
    """A kind of defect."""

    MISSING = "missing"
    DUPLICATED = "duplicated"
    UNKNOWN = "unknown"
    GONE = "gone"
    DAMAGED = "damaged"
    MISCOUNTED = "miscounted"
    ORPHANS = "orphans"
    STRANGERS = "strangers"
    WRONG_ERRORS = "wrongErrors"
    INPUT_CHANGED = "inputChanged"
    INPUT_GONE = "inputGone"
    INPUT_TWICE = "inputTwice"
    REPORT = "report"
    STATE = "state"
    NO_COMMIT = "noCommit"


MEANINGS = {
    Kind.MISSING: "input rows that are neither in the output nor in the errors",
    Kind.DUPLICATED: "rows that are in the output more than once",
    Kind.UNKNOWN: "rows in the output that the input does not have",
    Kind.GONE: "output files that are missing",
    Kind.DAMAGED: "output files that differ from what was committed",
    Kind.MISCOUNTED: "commits with a wrong number of rows",
    Kind.ORPHANS: "orphan files of the job, which readers would read as output",
    Kind.STRANGERS: "files of unknown origin, which readers would read as output",
    Kind.WRONG_ERRORS: "error records that are duplicated or do not belong to the commit",
    Kind.INPUT_CHANGED: "input files that have changed since",
    Kind.INPUT_GONE: "input files that are missing now",
    Kind.INPUT_TWICE: "input files that a later append has read again",
    Kind.REPORT: "counts in the report that differ from the files",
    Kind.STATE: "state files that are damaged",
    Kind.NO_COMMIT: "commits that the table does not contain",
}
WAYS_OUT = {
    Kind.MISSING: _ANEW,
    Kind.DUPLICATED: _ANEW,
    Kind.UNKNOWN: f"if the input was replaced, restore it, or {_ANEW}",
    Kind.GONE: _BACK,
    Kind.DAMAGED: _BACK,
    Kind.MISCOUNTED: _ANEW,
    Kind.ORPHANS: "delete them",
    Kind.STRANGERS: "move them elsewhere",
    Kind.WRONG_ERRORS: _ANEW,
    Kind.INPUT_CHANGED: f"the output has rows of their earlier content: restore them, or {_ANEW}",
    Kind.INPUT_GONE: "their rows cannot be compared: restore them",
    Kind.INPUT_TWICE: _ANEW,
    Kind.REPORT: "rely on the files, not on the report",
    Kind.STATE: _BACK,
    Kind.NO_COMMIT: "if its rows were not replaced and its history is complete, remove "
    "_batchinference below the output and run the job again",
}


@dataclass(frozen=True)
class Spot:
    """The location of a defect: a file; for defects of rows the first and the last row (None if the
    last row is unknown); and details if the kind does not say everything."""

    file: str
    rows: tuple[int, int | None] | None = None
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
        rows = {} if self.rows is None else dict(zip(("first", "last"), self.rows, strict=True))
        return {"file": self.file, **rows, **({"detail": self.detail} if self.detail else {})}


@dataclass
class Finding:
    """All defects of one kind."""

    kind: Kind
    count: int = 0
    spots: list[Spot] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        spots = [spot.as_json() for spot in self.spots]
        words = {"meaning": MEANINGS[self.kind], "wayOut": WAYS_OUT[self.kind]}
        return {"kind": self.kind.value, "count": self.count, **words, "where": spots}


Found: TypeAlias = tuple[Kind, Spot, int]
"""One defect, and the number of rows or files that it affects."""


class Findings:
    """Collects findings by kind."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, Finding] = {}

    def add(self, found: Iterable[Found]) -> None:
        for kind, spot, count in found:
            finding = self._by_kind.setdefault(kind, Finding(kind))
            finding.count += count
            if len(finding.spots) < MAX_SPOTS:
                finding.spots.append(spot)

    def listed(self) -> list[Finding]:
        """Return the findings in the order of `Kind`."""
        return [self._by_kind[kind] for kind in Kind if kind in self._by_kind]
