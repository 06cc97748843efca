"""Where everything lies under the output path.

    part-KEY-*.parquet             the output
    _SUCCESS                       put last: the output is complete
    _batchinference/
      job.json                     whose output this is
      report.json                  how it went
      errors/part-KEY-*.parquet    bad rows, unless errors.path says otherwise
      input.parquet                the frozen list of input files
      manifests/NNNN/*.json        commits of attempt NNNN

KEY is the beginning of the work's hash: two jobs that share a directory for their errors keep
apart. Names that begin with an underscore are passed over by readers of data sets.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from batchinference.pipeline.storage import Address
from batchinference.spec.job import BatchInferenceSpec

STATE_DIRECTORY = "_batchinference"
_HOW_IT_RUNS = {"batchSize", "replicas", "resources"}
"""Fields of a step that change the speed of the work and not its result."""


def work_key(spec: BatchInferenceSpec) -> str:
    """A hash of all that defines the work: the same for two files that ask for the same output."""
    work = spec.model_dump(mode="json", by_alias=True, exclude={"cluster"})
    for step in work["steps"]:
        for field in _HOW_IT_RUNS:
            step.pop(field, None)
    work["write"].pop("mode", None)
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def part_prefix(key: str) -> str:
    """How the names of all data and error files of some work begin."""
    return f"part-{key[:8]}-"


@dataclass(frozen=True)
class Layout:
    """The addresses of one output."""

    key: str
    output: Address
    errors: Address

    @classmethod
    def of(cls, spec: BatchInferenceSpec) -> Layout:
        output = Address(spec.write.path)
        errors = Address(spec.errors.path) if spec.errors.path else None
        return cls(work_key(spec), output, errors or output / STATE_DIRECTORY / "errors")

    @property
    def state(self) -> Address:
        return self.output / STATE_DIRECTORY

    @property
    def success(self) -> Address:
        return self.output / "_SUCCESS"

    @property
    def job(self) -> Address:
        return self.state / "job.json"

    @property
    def report(self) -> Address:
        return self.state / "report.json"

    @property
    def input(self) -> Address:
        return self.state / "input.parquet"

    def manifests(self, attempt: int) -> Address:
        return self.state / "manifests" / f"{attempt:04d}"

    def part_name(self, attempt: int, task: int, unique: str, extension: str) -> str:
        """The name of a data or error file: never used twice, whatever is tried again."""
        return f"{part_prefix(self.key)}{attempt:04d}-{task:08d}-{unique}{extension}"
