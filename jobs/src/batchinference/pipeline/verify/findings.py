"""The defects that an output can have: kinds, counts, locations and remedies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

MAX_SPOTS = 1000
"""Maximum number of locations that are listed per kind. All of them are counted."""
_ANEW = "run the job again with write.mode overwrite"
_BACK = f"put them back as they were, or {_ANEW}"


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
    Kind.MISSING: "rows of the input that neither the output nor the errors hold",
    Kind.DUPLICATED: "rows that are held once more than once",
    Kind.UNKNOWN: "rows that are held and that the input does not have",
    Kind.GONE: "files of the output that are gone",
    Kind.DAMAGED: "files of the output that are not as they were committed",
    Kind.MISCOUNTED: "commits whose rows are not as many as they say",
    Kind.ORPHANS: "files of the job that do not count, and that readers take for rows",
    Kind.STRANGERS: "files that none of the jobs has written, and that readers take for rows",
    Kind.WRONG_ERRORS: "rows of the errors that are there twice, or not of the commit's rows",
    Kind.INPUT_CHANGED: "files of the input that have changed since",
    Kind.INPUT_GONE: "files of the input that are gone since",
    Kind.INPUT_TWICE: "files of the input that were read once more, when new ones were added",
    Kind.REPORT: "counts of the report that differ from what is there",
    Kind.STATE: "files of the state that cannot be relied on",
    Kind.NO_COMMIT: "commits that the table knows nothing of",
}
WAYS_OUT = {
    Kind.MISSING: _ANEW,
    Kind.DUPLICATED: _ANEW,
    Kind.UNKNOWN: f"was the input replaced? Put it back, or {_ANEW}",
    Kind.GONE: _BACK,
    Kind.DAMAGED: _BACK,
    Kind.MISCOUNTED: _ANEW,
    Kind.ORPHANS: "delete them",
    Kind.STRANGERS: "move them elsewhere",
    Kind.WRONG_ERRORS: _ANEW,
    Kind.INPUT_CHANGED: f"what is held is of them as they were: put them back, or {_ANEW}",
    Kind.INPUT_GONE: "what is held of them cannot be compared: put them back",
    Kind.INPUT_TWICE: _ANEW,
    Kind.REPORT: "go by the files and not by the report",
    Kind.STATE: _BACK,
    Kind.NO_COMMIT: "were its rows replaced, or is its history cut? If not, remove "
    "_batchinference under the output, and run the job again",
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
