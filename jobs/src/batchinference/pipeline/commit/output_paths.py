"""Locations of all files below the output path. docs/contributing/protocol.md lists the files.

The *work* of a job is its output definition: the fields of the spec that determine its rows. The
hash of the work is its *key*. Names of data and error files contain the beginning of the key, so
jobs can share a directory. Readers of data sets ignore names that begin with an underscore."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from batchinference.pipeline.storage.location import Location, base_name

if TYPE_CHECKING:
    from batchinference.spec.job import BatchInferenceSpec

STATE_DIRECTORY = "_batchinference"
_APPENDED = "append-"
_REPLACEMENT = "replacement"
_SUFFIX = re.compile(r"(?<=-\d{8}-)[0-9a-f]{8}")
"""The random suffix in the name of a file. It follows the number of the task."""


def work_key(spec: BatchInferenceSpec) -> str:
    """Return the key of a spec. Two specs have the same key if they define the same work."""
    return hashlib.sha256(json.dumps(work_of(spec), sort_keys=True).encode()).hexdigest()


def work_of(spec: BatchInferenceSpec) -> dict[str, Any]:
    """Return the work of a spec: the fields that determine its rows, as plain data."""
    # imported here, because write tasks do not need the models of the spec
    from batchinference.spec.job import MUTABLE, MUTABLE_OF_STEP, OPERATOR_FIELDS

    # without defaults, so that a new option changes only the keys of jobs that set it
    exclude = {"resume", "parameters", *MUTABLE, *OPERATOR_FIELDS}
    work = spec.model_dump(mode="json", by_alias=True, exclude=exclude, exclude_defaults=True)
    for step in work.get("steps", []):
        for field in MUTABLE_OF_STEP:
            step.pop(field, None)
    for field in ("mode", "key"):  # these do not determine rows, only how rows enter a table
        work["write"].pop(field, None)
    for field in ("allowEmpty", "onChange", "onDelete"):
        work["read"].pop(field, None)
    # the limit on failed rows does not change the rows of a complete output
    work["errors"] = {"path": spec.errors.path}
    return work


def part_prefix(key: str) -> str:
    """Return the prefix for names of the data and error files of the work with this key. It has 64
    bits of the key, because many jobs may store their error records in one directory."""
    return f"part-{key[:16]}-"


def renamed_part(name: str, unique: str) -> str:
    """Return the name of a data or error file, with `unique` instead of its random suffix."""
    directory, slash, base = name.rpartition("/")
    return directory + slash + _SUFFIX.sub(unique, base, count=1)


class PathAttribute:
    """Descriptor of the location `name` in the directory that is the attribute `directory`."""

    def __init__(self, name: str, directory: str = "state") -> None:
        self._name, self._directory = name, directory

    def __get__(self, owner: Any, _: type[Any]) -> Location:
        directory: Location = getattr(owner, self._directory)
        return directory / self._name


@dataclass(frozen=True)
class Layout:
    """The locations of the files and directories of one output."""

    key: str
    """The key of the work that is written to the output."""
    output: Location
    state: Location
    """The directory of the lease, the snapshots, the passes and the report."""
    errors: Location
    """The directory of the error records."""
    is_table: bool = False
    """Whether the rows are written to a table, in one commit at the end."""
    heartbeat_seconds: float = 10.0
    """Seconds between two heartbeats of a run that writes to the output."""
    lease_timeout: float = 25.0
    """Seconds for which a run waits for a heartbeat of another run. A heartbeat may be late."""

    def __post_init__(self) -> None:
        """Refuse symbolic links below the output and the error records: other users may plant them.
        The paths of these two directories themselves may contain links."""
        errors_root = self.output if self.output.contains(self.errors) else self.errors
        roots = {"output": self.output, "state": self.output, "errors": errors_root}
        for name, root in roots.items():
            object.__setattr__(self, name, getattr(self, name).without_links_below(root))

    @classmethod
    def of(cls, spec: BatchInferenceSpec) -> Layout:
        """Return the layout of a job's output, or of appended rows if the write mode adds rows."""
        from batchinference.spec.write import WriteTable

        storage = spec.write.storage
        key, output = work_key(spec), Location(spec.write.path, storage)
        state = output / STATE_DIRECTORY
        errors = Location(spec.errors.path, storage) if spec.errors.path else state / "errors"
        main = cls(key, output, state, errors, isinstance(spec.write, WriteTable))
        return main.append_layout if spec.write.adds else main

    def _with_state(self, state: Location) -> Layout:
        """Return the layout with another state directory. Default `errors` move to it, too."""
        inside = self.errors == self.state / "errors"
        return replace(self, state=state, errors=state / "errors" if inside else self.errors)

    @property
    def main(self) -> Layout:
        """The layout of the main output, to which the other layouts append rows."""
        return self._with_state(self.output / STATE_DIRECTORY)

    @property
    def append_layout(self) -> Layout:
        """The layout of the first run with a mode that adds rows. Later runs use `addition`."""
        return self._with_state(self.output / STATE_DIRECTORY / f"{_APPENDED}{self.key[:8]}")

    def all_appended(self, directories: Sequence[Location] | None = None) -> list[Layout]:
        """Return the layouts of all rows that any jobs have appended to this main output.
        `directories` are the directories in its state directory, if they are known."""
        states = self.state.directories() if directories is None else directories
        appended = (state for state in states if base_name(state.path).startswith(_APPENDED))
        return [replace(self, state=state, errors=state / "errors") for state in appended]

    def addition(self, number: int) -> Layout:
        """Return the layout of addition `number` of this work. An addition has the rows of input
        files that arrived after the previous run. Its own run writes it."""
        key = hashlib.sha256(f"{self.key}+{number}".encode()).hexdigest()
        state = self.main.state / f"{_APPENDED}{self.key[:8]}-{number:04d}"
        return replace(self._with_state(state), key=key)

    @property
    def addition_number(self) -> int:
        """The number of the addition; 0 for any other layout."""
        match = re.fullmatch(rf"{_APPENDED}[0-9a-f]{{8}}-(\d+)", base_name(self.state.path))
        return int(match[1]) if match else 0

    def own_additions(self, directories: Sequence[Location]) -> list[Layout]:
        """Return the layouts of the additions that this work has begun. `directories` are the
        directories in the state directory of the main output."""
        prefix = f"{_APPENDED}{self.key[:8]}-"
        names = (base_name(state.path) for state in directories)
        count = sum(name.startswith(prefix) for name in names)
        return [self.addition(number) for number in range(1, 1 + count)]

    @property
    def replacement(self) -> Layout:
        """The layout of an output that replaces this one. Readers see it after it is swapped in."""
        state = self.output / STATE_DIRECTORY / _REPLACEMENT
        return replace(self, state=state, errors=state / "errors")

    @property
    def is_replacement(self) -> bool:
        """Whether this is the layout of a replacement, which readers do not see."""
        return self.state == self.output / STATE_DIRECTORY / _REPLACEMENT

    @property
    def history(self) -> Location:
        """The directory of the run history of the main output."""
        return self.main.state / "history"

    @property
    def data(self) -> Location:
        """The directory to which tasks write data files."""
        return self.state / "staged" if self.is_table or self.is_replacement else self.output

    @property
    def _user_directory(self) -> Location:
        """The directory of files for users: the output for a main output, otherwise the state."""
        return self.output if self.state == self.output / STATE_DIRECTORY else self.state

    success = PathAttribute("_SUCCESS", "_user_directory")
    errors_jsonl = PathAttribute("_errors.jsonl", "_user_directory")
    """Failed rows as JSON lines. Only formats that define such a file write it."""
    lease_file = PathAttribute("job.json")
    spec = PathAttribute("spec.json")
    report = PathAttribute("report.json")
    report_page = PathAttribute("report.html")
    input = PathAttribute("input.parquet")
    code = PathAttribute("code.json")
    final_snapshot = PathAttribute("output.json")
    keys = PathAttribute("keys.parquet")
    passes = PathAttribute("attempts")
    """A directory for each pass. Named as in earlier versions, so that their outputs resume."""

    def file_prefix(self, pass_number: int, task: int, unique: str) -> str:
        """Return the prefix for names of a task's files. `unique` is new for each call."""
        return f"{part_prefix(self.key)}{pass_number:04d}-{task:08d}-{unique}"
