"""Where everything lies under the output path.

    part-KEY-*.parquet             the output, with write.partitionBy in directories
    _SUCCESS                       put last: the output is complete
    _batchinference/
      job.json                     whose output this is
      spec.json                    what was asked for, without secrets
      report.json                  how it went
      errors/part-KEY-*.parquet    bad rows, unless errors.path says otherwise
      input.parquet                the frozen list of input files
      output.json                  what counts of the output, once that is complete
      attempts/NNNN-RUN/           attempt NNNN, by a run with this random name
        start.json                 what counted of the output when it began
        *.json                     its commits
        closed                     it takes no more of them
      append-KEY/                  the same, and _SUCCESS, of a job that has added to the output
      staged/part-KEY-*            of a table: what its commit takes, until it is made

KEY is the beginning of the work's hash: two jobs that share a directory keep apart. Names that
begin with an underscore are passed over by readers of data sets.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from batchinference.pipeline.storage.location import Location, base_name
from batchinference.spec.job import MUTABLE, BatchInferenceSpec
from batchinference.spec.write import WriteTable

STATE_DIRECTORY = "_batchinference"
_APPENDED = "append-"
_HOW_IT_RUNS = {"batchSize", "replicas", "resources"}
"""Fields of a step that change the speed of the work and not its result."""
_NOT_WORK = {"cluster", *MUTABLE}


def work_key(spec: BatchInferenceSpec) -> str:
    """A hash of all that defines the work: the same for two files that ask for the same output."""
    # an option that comes with a later version changes the key of no job that leaves it out
    work = spec.model_dump(mode="json", by_alias=True, exclude=_NOT_WORK, exclude_defaults=True)
    for step in work.get("steps", []):
        for field in _HOW_IT_RUNS:
            step.pop(field, None)
    work["write"].pop("mode", None)
    # how many bad rows are too many says nothing of what a complete output holds
    work["errors"] = {"path": spec.errors.path}
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def part_prefix(key: str) -> str:
    """How the names of all data and error files of some work begin."""
    return f"part-{key[:8]}-"


def addition_key(key: str, number: int) -> str:
    """The key of an addition to the output of the work with this key."""
    return hashlib.sha256(f"{key}+{number}".encode()).hexdigest()


@dataclass(frozen=True)
class Layout:
    """The addresses of one output."""

    key: str
    output: Location
    state: Location
    """The directory of all but the output."""
    errors: Location
    is_table: bool = False
    """Whether the rows go to a table, in one commit at the end."""

    @classmethod
    def of(cls, spec: BatchInferenceSpec) -> Layout:
        storage = spec.write.storage
        key, output = work_key(spec), Location(spec.write.path, storage)
        state = output / STATE_DIRECTORY
        if spec.write.mode == "append":
            state = state / f"{_APPENDED}{key[:8]}"
        errors = Location(spec.errors.path, storage) if spec.errors.path else state / "errors"
        return cls(key, output, state, errors, isinstance(spec.write, WriteTable))

    @property
    def whole(self) -> Layout:
        """The layout of the output that this one adds to; itself where it adds to none."""
        state = self.output / STATE_DIRECTORY
        return self if state == self.state else replace(self, state=state, errors=state / "errors")

    def appended(self) -> list[Layout]:
        """The layouts of all that was added to this output."""
        return [
            Layout(self.key, self.output, state, state / "errors", self.is_table)
            for state in self.state.directories()
            if base_name(state.path).startswith(_APPENDED)
        ]

    def addition(self, number: int) -> Layout:
        """Of what comes to the work's input later, and is added in a run of its own."""
        key = addition_key(self.key, number)
        state = self.whole.state / f"{_APPENDED}{self.key[:8]}-{number:04d}"
        inside = self.errors == self.state / "errors"
        return replace(
            self, key=key, state=state, errors=state / "errors" if inside else self.errors
        )

    def additions(self) -> list[Layout]:
        """Those that were begun."""
        begun = f"{_APPENDED}{self.key[:8]}-"
        names = (base_name(one.path) for one in self.whole.state.directories())
        count = sum(name.startswith(begun) for name in names)
        return [self.addition(number) for number in range(1, 1 + count)]

    @property
    def data(self) -> Location:
        """Where write tasks put their files."""
        return self.state / "staged" if self.is_table else self.output

    @property
    def success(self) -> Location:
        added = base_name(self.state.path).startswith(_APPENDED)
        return (self.state if added else self.output) / "_SUCCESS"

    @property
    def job(self) -> Location:
        return self.state / "job.json"

    @property
    def spec(self) -> Location:
        return self.state / "spec.json"

    @property
    def report(self) -> Location:
        return self.state / "report.json"

    @property
    def input(self) -> Location:
        return self.state / "input.parquet"

    @property
    def end(self) -> Location:
        return self.state / "output.json"

    @property
    def attempts(self) -> Location:
        return self.state / "attempts"

    def part_name(self, attempt: int, task: int, unique: str) -> str:
        """How the names of a task's files begin: never used twice, whatever is tried again."""
        return f"{part_prefix(self.key)}{attempt:04d}-{task:08d}-{unique}"
