"""Locations of all files below the output path, which docs/contributing/protocol.md lists.

The names of data and error files contain the beginning of the hash of the work, which separates the
files of jobs that share a directory. Readers of data sets skip names that begin with an underscore.
"""

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
"""The random suffix in the name of a file, which follows the number of the task."""


def work_key(spec: BatchInferenceSpec) -> str:
    """Return a hash of everything that defines the work. Two job files that request the same output
    have the same key."""
    return hashlib.sha256(json.dumps(work_of(spec), sort_keys=True).encode()).hexdigest()


def work_of(spec: BatchInferenceSpec) -> dict[str, Any]:
    """Return the fields of a spec that define its work, as plain data."""
    # only drivers need the specification
    from batchinference.spec.job import MUTABLE, MUTABLE_OF_STEP, OPERATOR_FIELDS

    # an option added in a later version must not change the key of jobs that do not set it
    exclude = {"resume", "parameters", *MUTABLE, *OPERATOR_FIELDS}
    work = spec.model_dump(mode="json", by_alias=True, exclude=exclude, exclude_defaults=True)
    for step in work.get("steps", []):
        for field in MUTABLE_OF_STEP:
            step.pop(field, None)
    for field in ("mode", "key"):  # which rows a table holds after the commit
        work["write"].pop(field, None)
    for field in ("allowEmpty", "onChange", "onDelete"):
        work["read"].pop(field, None)
    # the limit on failed rows does not affect what a complete output holds
    work["errors"] = {"path": spec.errors.path}
    return work


def part_prefix(key: str) -> str:
    """Return the prefix of the names of all data and error files of the work with this key. Many
    jobs may store their error records in one directory, so it has 64 bits of the key."""
    return f"part-{key[:16]}-"


def renamed_part(name: str, unique: str) -> str:
    """Return the name of a data or error file with another random suffix."""
    directory, slash, base = name.rpartition("/")
    return directory + slash + _SUFFIX.sub(unique, base, count=1)


def addition_key(key: str, number: int) -> str:
    """Return the key of an addition to the output of the work with this key."""
    return hashlib.sha256(f"{key}+{number}".encode()).hexdigest()


class File:
    """A file, or a directory, with this name in a directory: an attribute of the owner."""

    def __init__(self, name: str, directory: str = "state") -> None:
        self._name, self._directory = name, directory

    def __get__(self, owner: Any, _: type[Any]) -> Location:
        directory: Location = getattr(owner, self._directory)
        return directory / self._name


@dataclass(frozen=True)
class Layout:
    """The locations of the files and directories of one output."""

    key: str
    output: Location
    state: Location
    """The directory of everything except the output files."""
    errors: Location
    is_table: bool = False
    """Whether the rows are written to a table, in one commit at the end."""

    def __post_init__(self) -> None:
        """Refuse symbolic links in the output, which others may have planted. The path of the
        output itself may contain links."""
        errors_root = self.output if self.output.holds(self.errors) else self.errors
        for name, root in (
            ("output", self.output),
            ("state", self.output),
            ("errors", errors_root),
        ):
            place: Location = getattr(self, name)
            object.__setattr__(self, name, place.without_links_below(root))

    @classmethod
    def of(cls, spec: BatchInferenceSpec) -> Layout:
        from batchinference.spec.write import WriteTable

        storage = spec.write.storage
        key, output = work_key(spec), Location(spec.write.path, storage)
        state = output / STATE_DIRECTORY
        errors = Location(spec.errors.path, storage) if spec.errors.path else state / "errors"
        whole = cls(key, output, state, errors, isinstance(spec.write, WriteTable))
        return whole.first_append if spec.write.adds else whole

    def _in(self, state: Location) -> Layout:
        """Return the layout with another directory of the state."""
        inside = self.errors == self.state / "errors"
        return replace(self, state=state, errors=state / "errors" if inside else self.errors)

    @property
    def whole(self) -> Layout:
        """The layout of the output that this one adds to; this layout if it is not an addition."""
        return self._in(self.output / STATE_DIRECTORY)

    @property
    def first_append(self) -> Layout:
        """The layout of the rows that this work appends to what is in the output."""
        return self._in(self.output / STATE_DIRECTORY / f"{_APPENDED}{self.key[:8]}")

    def appended(self, directories: Sequence[Location] | None = None) -> list[Layout]:
        """Return the layouts of everything that was added to this output. `directories` are those
        in its state, if they are known."""
        found = self.state.directories() if directories is None else directories
        return [
            Layout(self.key, self.output, state, state / "errors", self.is_table)
            for state in found
            if base_name(state.path).startswith(_APPENDED)
        ]

    def addition(self, number: int) -> Layout:
        """Return the layout of addition `number`. An addition holds the rows of input files that
        arrive later, and is written by a separate run."""
        key = addition_key(self.key, number)
        state = self.whole.state / f"{_APPENDED}{self.key[:8]}-{number:04d}"
        return replace(self._in(state), key=key)

    @property
    def addition_number(self) -> int:
        """The number of the addition with this layout; 0 if it is not an addition."""
        found = re.fullmatch(rf"{_APPENDED}[0-9a-f]{{8}}-(\d+)", base_name(self.state.path))
        return int(found[1]) if found else 0

    def additions(self, directories: Sequence[Location]) -> list[Layout]:
        """Return the layouts of the additions that have begun, of the directories in the state of
        the whole output."""
        prefix = f"{_APPENDED}{self.key[:8]}-"
        names = (base_name(state.path) for state in directories)
        count = sum(name.startswith(prefix) for name in names)
        return [self.addition(number) for number in range(1, 1 + count)]

    @property
    def replacement(self) -> Layout:
        """The layout of the output that will replace this one, which readers do not see."""
        state = self.output / STATE_DIRECTORY / _REPLACEMENT
        return replace(self, state=state, errors=state / "errors")

    @property
    def is_replacement(self) -> bool:
        return self.state == self.output / STATE_DIRECTORY / _REPLACEMENT

    @property
    def history(self) -> Location:
        """The directory of the history of the whole output."""
        return self.whole.state / "history"

    @property
    def data(self) -> Location:
        """The directory in which write tasks put their files."""
        return self.state / "staged" if self.is_table or self.is_replacement else self.output

    @property
    def _front(self) -> Location:
        """The directory of the files that are for users."""
        return self.output if self.state == self.output / STATE_DIRECTORY else self.state

    success = File("_SUCCESS", "_front")
    error_file = File("_errors.jsonl", "_front")
    """Of formats that have one."""
    job = File("job.json")
    spec = File("spec.json")
    report = File("report.json")
    report_page = File("report.html")
    input = File("input.parquet")
    code = File("code.json")
    end = File("output.json")
    keys = File("keys.parquet")
    attempts = File("attempts")

    def part_name(self, attempt: int, task: int, unique: str) -> str:
        """Return the prefix of the names of a task's files. It is never used twice, even on a
        retry."""
        return f"{part_prefix(self.key)}{attempt:04d}-{task:08d}-{unique}"
