"""Compares an input with earlier input snapshots: detects new, changed and deleted files, and
refuses changes that the job cannot handle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.errors import RESTART, BadInput, BadOutput
from batchinference.pipeline.input import JobInput
from batchinference.pipeline.input.ignored_files import IgnoredFiles, similar_names
from batchinference.pipeline.input.input_snapshot import (
    REMOVED,
    STATS,
    InputSnapshot,
    Version,
    describe_change,
    version_in,
)
from batchinference.pipeline.storage.arrow_files import read_table
from batchinference.text import counted

PARTS_AT_ONCE = 10_000
"""Number of parts of an input that are converted to Python objects together."""
START_OVER_HINT = (
    f"run `{RESTART}` to compute all rows again (on a cluster or with append: set resume to false)"
)


@dataclass(frozen=True)
class ReplacementRule:
    """Whether a job `recomputes` rows of changed files (`read.onChange`), and `removes` rows of
    deleted files (`read.onDelete`). `possible` tells whether the job could use these settings."""

    recomputes: bool = False
    removes: bool = False
    possible: bool = False

    def fix(self, setting: str, other: str) -> str:
        """Return the fix for a message: set `setting` of `read` (if the job could use it), or
        `other`."""
        return f"set read.{setting}, or {other}" if self.possible else other


@dataclass(frozen=True)
class FileChanges:
    """How the files of a snapshot differ from the current files, by file number. `changed` has the
    current versions of changed files. `gone` are the deleted files. `kept` are the deleted files
    whose rows stay in the output."""

    changed: Mapping[int, Version]
    gone: frozenset[int]
    kept: frozenset[int] = frozenset()
    relisted: bool = False
    """Whether the current snapshot differs from the snapshot that is stored with the output."""

    @classmethod
    def between(cls, snapshot: InputSnapshot, now: InputSnapshot) -> FileChanges:
        """Return how the files of a snapshot differ from the current files `now`."""
        current = dict(zip(now.uris, now.versions, strict=True))
        changed, gone = {}, set()
        for number, (uri, known) in enumerate(zip(snapshot.uris, snapshot.versions, strict=True)):
            if known == REMOVED:
                continue  # if such a file comes back, it is a new file
            if uri not in current:
                gone.add(number)
            elif current[uri] != known:
                changed[number] = current[uri]
        return cls(changed, frozenset(gone))

    @property
    def removed(self) -> frozenset[int]:
        """The deleted files whose rows must be removed from the output."""
        return self.gone - self.kept

    def __bool__(self) -> bool:
        return bool(self.changed or self.removed)

    def applied(self, snapshot: InputSnapshot) -> InputSnapshot:
        """Return the snapshot with the current versions of its files. The version of the files in
        `self.removed` is REMOVED."""
        versions = {**self.changed, **dict.fromkeys(self.removed, REMOVED)}
        return snapshot.with_versions(versions) if versions else snapshot


NO_CHANGES = FileChanges({}, frozenset())


@dataclass(frozen=True)
class ResumedInput:
    """The input snapshot of a job that resumes.

    `unfinished` returns the numbers of the files with missing rows in the output. Its argument is
    the rows per file (None if unknown before reading). `relisted` tells whether `snapshot` was
    stored by a pass that died before it replaced the snapshot of the output."""

    snapshot: InputSnapshot
    unfinished: Callable[[int | None], Collection[int]]
    rule: ReplacementRule = ReplacementRule()
    relisted: bool = False

    def check(self, now: InputSnapshot, rows_each: int | None) -> FileChanges:
        """Return how files of the snapshot differ from the current files `now`. `rows_each` is the
        argument of `unfinished`. Raises BadInput for a changed file, and for a deleted unfinished
        file, if `rule` does not replace its rows."""
        changes = FileChanges.between(self.snapshot, now)
        unfinished = self.unfinished(rows_each)
        uris, versions = self.snapshot.uris, self.snapshot.versions
        for number, version in changes.changed.items():
            if not self.rule.recomputes:
                fix = self.rule.fix("onChange: recompute", START_OVER_HINT)
                raise _changed_file_error(uris[number], versions[number], version, fix)
        for number in () if self.rule.removes else sorted(changes.gone.intersection(unfinished)):
            fix = self.rule.fix("onDelete: removeRows", START_OVER_HINT)
            raise BadInput(f"'{uris[number]}' is gone, and the output lacks rows of it: {fix}")
        changes = replace(changes, kept=frozenset() if self.rule.removes else changes.gone)
        return replace(changes, relisted=self.relisted or bool(changes))


class NoNewFiles(Exception):
    """Raised if earlier runs have read the whole input. `ignored` are files that no run reads."""

    def __init__(self, ignored: IgnoredFiles) -> None:
        text = f" ({ignored.text})" if ignored.text else ""
        super().__init__(f"there are no new files in its input{text}")


@dataclass(frozen=True)
class ProcessedFiles:
    """The input snapshots of earlier runs, whose rows are already in the output. `rule` tells what
    happens to the rows of files that have changed since these runs."""

    snapshots: list[InputSnapshot]
    rule: ReplacementRule = ReplacementRule()

    def without(self, now: InputSnapshot) -> InputSnapshot:
        """Return the snapshot `now` with only its new files.

        Raises NoNewFiles if there are none. Raises BadInput if a processed file has changed, and
        `rule` does not replace its rows."""
        known: dict[str, Version] = {}
        for snapshot in self.snapshots:
            pairs = zip(snapshot.uris, snapshot.versions, strict=True)
            known.update((uri, version) for uri, version in pairs if version != REMOVED)
        uris = now.uris
        for uri, version in zip(uris, now.versions, strict=True):
            if known.get(uri, version) != version and not self.rule.recomputes:
                fix = self.rule.fix("onChange: recompute", "set write.mode to overwrite")
                raise _changed_file_error(uri, known[uri], version, fix)
        new = [uri for uri in uris if uri not in known]
        if not new:
            raise NoNewFiles(now.ignored)
        table = now.table.filter(pa.array([uri not in known for uri in uris]))
        ignored = now.ignored.with_similar(similar_names(new, (*known, *uris)))
        return replace(now, table=table, ignored=ignored)


def _changed_file_error(uri: str, before: Version, now: Version, fix: str) -> BadInput:
    change = describe_change(uri, before, now)
    return BadInput(f"{change}, and the output has rows of its earlier content: {fix}")


def describe_changes(source: JobInput, complete: Sequence[Layout], restart: str) -> str:
    """Return a remark if the input differs, or may differ, from the input of a complete output.
    Otherwise, return an empty text. `complete` are the layouts of the output and its additions.
    `restart` is a sentence that says how to compute all rows again."""
    stored = (layout.input.read_if_exists() for layout in complete)
    contents = [content for content in stored if content is not None]
    if not contents:
        return ""
    try:
        if (table := version_in(source.serialized())) is not None:
            if table.version in [each.version for each in map(version_in, contents) if each]:
                return ""
            return (
                f"{table.name} has version {table.version} now, whose changes are not in the "
                "output. Set write.mode to append to add its new rows"
            )
        before = np.unique(np.concatenate([_hashes_of_parts(content) for content in contents]))
    except pa.ArrowInvalid:
        return "its input.parquet is damaged, so it is unknown whether the input has changed"
    now = _hashes_of_parts(source.serialized())
    if (added := np.flatnonzero(~np.isin(now, before))).size:
        part = next(islice(_parts(source.serialized()), int(added[0]), None))
        earlier = (each for content in contents for each in _parts(content) if each[0] == part[0])
        return _describe_part(part, next(earlier, None), len(added) - 1, restart)
    if gone := len(before) - len(np.unique(now)):
        return (
            f"the input has changed since: the output has rows of {counted(gone, 'part')} that it "
            f"no longer has. {restart}"
        )
    return ""


def _describe_part(
    part: tuple[object, ...], earlier: tuple[object, ...] | None, others: int, restart: str
) -> str:
    """Return a remark about a part of the input that is new, or has changed from `earlier`.
    `others` is the number of other parts that are new or have changed."""
    what = "is new"
    if earlier is not None:
        sizes = f" ({earlier[1]} bytes then, {part[1]} now)" if len(part) > 2 else ""
        what = f"has changed{sizes}"
    more = f", like {counted(others, 'other part')}" if others else ""
    append = "" if earlier else "Set write.mode to append to add the rows of new files. "
    return (
        f"the input has changed since: '{part[0]}' {what}{more}, and the output lacks its rows. "
        f"{append}{restart}"
    )


def check_previous_versions(source: JobInput, previous: Sequence[Layout]) -> None:
    """Raise BadOutput if an output in `previous` has rows of a file or table of this input. The
    same job wrote these outputs before its spec changed."""
    known = {identity for identity, _ in _origins(source.serialized())} if previous else set()
    for layout in previous:
        origins = _origins(layout.input.read())
        if (name := next((name for identity, name in origins if identity in known), None)) is None:
            continue
        raise BadOutput(
            f"spec.write.path: '{layout.output.uri}' holds rows of {name} by this job as it was "
            "before its spec changed. Choose another path, set write.mode to overwrite, or give "
            "the job another metadata.name to have both"
        )


def _origins(content: bytes) -> Iterator[tuple[object, str]]:
    """Yield the identity and the name of the file or table to which each part of an input snapshot
    belongs. In a table, files identify nothing, because compaction moves rows to other files."""
    table = version_in(content)
    for part in _parts(content):
        yield (table.table, table.name) if table else (part[0], f"'{part[0]}'")


def _parts(content: bytes) -> Iterator[tuple[object, ...]]:
    """Yield the values that identify each part of an input snapshot, without statistics. Files
    whose rows were removed are left out."""
    table = read_table(pa.BufferReader(content))
    not_identifying = (*STATS.names, "constants")
    table = table.drop_columns([name for name in not_identifying if name in table.column_names])
    for batch in table.to_batches(max_chunksize=PARTS_AT_ONCE):
        columns = batch.to_pydict()
        times = columns.get("modified") or [None] * batch.num_rows
        parts = zip(times, zip(*columns.values(), strict=True), strict=True)
        yield from (part for time, part in parts if time != REMOVED[1])


def _hashes_of_parts(content: bytes) -> np.ndarray:
    """Return a hash (int64) of each part of an input snapshot, to save memory."""
    return np.fromiter(map(hash, _parts(content)), np.int64)
