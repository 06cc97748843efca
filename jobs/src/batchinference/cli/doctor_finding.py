"""The result of one check of `doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """The result of a check. FAILED: this machine cannot run jobs, or not the job of the file."""

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
        """What was found, and the advice if there is one."""
        return f"{self.found}. {self.advice}" if self.advice else self.found
