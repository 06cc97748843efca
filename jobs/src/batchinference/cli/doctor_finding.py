"""What a check of `doctor` has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """The result of a check. A failed check prevents jobs on this machine, or the given job."""

    OK = "ok"
    NOTE = "note"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """What a check has found, and how to fix it."""

    check: str
    result: Result
    found: str
    advice: str = ""

    @property
    def message(self) -> str:
        return f"{self.found}. {self.advice}" if self.advice else self.found
