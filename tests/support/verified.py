"""`batchinference verify`, as programs call it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from batchinference.cli.main import app


@dataclass(frozen=True)
class Verified:
    """An exit code, and what was printed."""

    exit_code: int
    proof: dict[str, Any]

    @property
    def result(self) -> str:
        return str(self.proof["result"])

    @property
    def job(self) -> dict[str, Any]:
        """What is said of the only job."""
        (job,) = self.proof["jobs"]
        found: dict[str, Any] = job
        return found

    @property
    def found(self) -> dict[str, int]:
        """How often there is what, over all jobs and the output as a whole."""
        listed = [
            *self.proof["findings"],
            *(f for job in self.proof["jobs"] for f in job["findings"]),
        ]
        return {finding["kind"]: finding["count"] for finding in listed}

    def where(self, kind: str) -> list[dict[str, Any]]:
        """Where there is what, but for the details."""
        listed = [
            *self.proof["findings"],
            *(f for job in self.proof["jobs"] for f in job["findings"]),
        ]
        (spots,) = (finding["where"] for finding in listed if finding["kind"] == kind)
        return [{key: value for key, value in spot.items() if key != "detail"} for spot in spots]


def invoke(output: Path | str, *options: str) -> Result:
    return CliRunner().invoke(app, ["verify", str(output), *options])


def verified(output: Path | str, *options: str) -> Verified:
    done = invoke(output, "--json", *options)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Verified(done.exit_code, json.loads(done.stdout))
