"""The command `batchinference verify` with JSON output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result

from support.program import run_program


@dataclass(frozen=True)
class Verified:
    """The exit code and the printed JSON of one call."""

    exit_code: int
    proof: dict[str, Any]

    @property
    def result(self) -> str:
        return str(self.proof["result"])

    @property
    def job(self) -> dict[str, Any]:
        """The result of the only job."""
        (job,) = self.proof["jobs"]
        result: dict[str, Any] = job
        return result

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each kind."""
        return {finding["kind"]: finding["count"] for finding in self._findings()}

    def where(self, kind: str) -> list[dict[str, Any]]:
        """Return the locations of the findings of a kind, without details."""
        (spots,) = (finding["where"] for finding in self._findings() if finding["kind"] == kind)
        return [{key: value for key, value in spot.items() if key != "detail"} for spot in spots]

    def _findings(self) -> list[dict[str, Any]]:
        """List the findings of the output as a whole and of its jobs."""
        jobs = (finding for job in self.proof["jobs"] for finding in job["findings"])
        return [*self.proof["findings"], *jobs]


def invoke(output: Path | str, *options: str) -> Result:
    return run_program("verify", str(output), *options)


def verified(output: Path | str, *options: str) -> Verified:
    done = invoke(output, "-o", "json", *options)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Verified(done.exit_code, json.loads(done.stdout))
