"""One attempt at an output: the commits of its tasks, and how the attempt is completed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from batchinference.pipeline.commit.heartbeat import heartbeat_file, keep_heartbeat
from batchinference.pipeline.commit.layout import File, Layout, part_prefix
from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.commit.manifest import Manifest, ManifestEntry, parse_manifest_name
from batchinference.pipeline.commit.snapshot import Snapshot, StoredFiles, without_missing_files
from batchinference.pipeline.commit.table_commit import (
    CommittedTable,
    Fence,
    TableFiles,
    table_errors_as_bad_output,
    table_has_rows,
)
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location, base_name, delete_all, remnant_of
from batchinference.spec.progress import Counts

if TYPE_CHECKING:
    from batchinference.spec.report import Report
    from batchinference.spec.write import WriteTable

FETCH_THREADS = 16


@dataclass(frozen=True)
class Attempt:
    """One run that processes the missing rows of an output. It is passed to the write tasks."""

    layout: Layout
    lease: Lease

    @classmethod
    def begin(
        cls,
        layout: Layout,
        before: Lease | None,
        start: Snapshot,
        job: str = "",
        files: StoredFiles | None = None,
        changed_input: bytes | None = None,
    ) -> Attempt:
        """Begin the attempt after the one of the lease `before`, and return it. From now on the
        output belongs to this attempt: commits of other attempts do not count, and their files are
        deleted unless `start` names them. `job` identifies this job among others that want the
        output. `files` are those of the output, if they were listed already. `changed_input` is the
        input snapshot of `start`, if it is not the one that is stored.

        Raises BadOutput if another run has begun in the output."""
        number, series = (before.attempt + 1, before.series) if before else (1, "")
        lease = Lease.new(layout, number, job=job, series=series)
        attempt = cls(layout, lease)
        if changed_input is not None:
            attempt.input.write(changed_input)
        start_of(layout, lease).write(replace(start, attempt=number).serialized())
        lease.put(layout, before)
        if before is not None and before.begun:  # otherwise its claim has deleted the marker
            layout.success.delete()  # not earlier: another run may have written it
        if changed_input is not None:  # not earlier: a complete output has the previous one
            layout.input.write(changed_input)
        with keep_heartbeat(attempt.heartbeat):
            attempt.remove_orphans(start.entries, files)
        return attempt

    @property
    def number(self) -> int:
        return self.lease.attempt

    @property
    def place(self) -> Location:
        """The directory of the attempt's commits."""
        return self.lease.place(self.layout)

    @property
    def heartbeat(self) -> Location:
        """The heartbeat file of the attempt."""
        return heartbeat_file(self.layout, self.lease)

    input = File("input.parquet", "place")
    """The input snapshot, if this attempt has changed it."""
    closed = File("closed", "place")
    unified = File("unified.json", "place")
    """The final snapshot of an attempt that has rewritten files to unify their schemas. The old
    files are deleted after it is written."""

    def load_committed(self) -> Snapshot:
        """Return the snapshot of the rows that count, without entries whose files are missing.
        Raises BadOutput if a snapshot is damaged."""
        return self.load_committed_files()[0]

    def load_committed_files(self) -> tuple[Snapshot, StoredFiles]:
        """Return the same snapshot, and the files of the output, which were listed for it."""
        committed, files = self._committed(), StoredFiles.of(self.layout)
        return without_missing_files(self.layout, committed, files), files

    def _committed(self) -> Snapshot:
        for place in (self.layout.end, self.unified):
            if place.exists():
                found = Snapshot.read(place, self.layout.key)
                if found.attempt == self.number:  # not of an earlier attempt
                    return found
        start = Snapshot.read(start_of(self.layout, self.lease), self.layout.key)
        return start.with_commits(self.manifests())

    def counts(self) -> Counts:
        """Return the counts of the rows committed so far, from the names of the manifests. If a
        task ran twice, the first commit of each number counts, as in `manifests`."""
        commits = sorted(self._commits(), reverse=True)
        return Counts.sum({commit: counts for _, commit, counts in commits}.values())

    def manifests(self, task: int | None = None) -> list[Manifest]:
        """Return all commits of the attempt, or those of one task, in the order of their names. A
        damaged manifest counts as not committed."""
        names = sorted(name for name, (number, _), _ in self._commits() if task in (None, number))
        with ThreadPoolExecutor(FETCH_THREADS) as pool:
            manifests = pool.map(self._manifest, names)
            return [manifest for manifest in manifests if manifest is not None]

    def failed_entries(self) -> Iterator[ManifestEntry]:
        """Yield the entries of the commits with failed rows. Fetches one manifest at a time."""
        for name, _, counts in self._commits():
            if counts.failed and (manifest := self._manifest(name)) is not None:
                yield from manifest.entries

    def warned_manifests(
        self, known: Collection[tuple[int, int]], most: int
    ) -> Iterator[tuple[tuple[int, int], Manifest]]:
        """Yield up to `most` commits with warnings: their task and number, and their manifest.
        Commits in `known` are left out."""
        commits = (
            (name, commit)
            for name, commit, counts in self._commits()
            if counts.warned and commit not in known
        )
        for name, commit in islice(commits, most):
            if (manifest := self._manifest(name)) is not None:
                yield commit, manifest

    def _manifest(self, name: str) -> Manifest | None:
        try:
            manifest = Manifest.parse((self.place / name).read())
        except (ValueError, FileNotFoundError):
            return None
        return manifest if manifest.is_of(self.layout.key) else None

    def _commits(self) -> Iterator[tuple[str, tuple[int, int], Counts]]:
        """Yield the name of each manifest, its task and number, and its counts."""
        for info in self.place.files():
            name = base_name(info.path)
            if found := parse_manifest_name(name):
                yield name, *found

    def close(self) -> None:
        """Stop accepting commits. Raises BadOutput if another run has taken over the output."""
        self.check_lease()
        self.closed.write(b"")

    def put_unified(self, end: Snapshot) -> None:
        """Write the final snapshot of an attempt that has rewritten files. From now on the old
        files do not count. Raises BadOutput if another run has taken over the output."""
        self.check_lease()
        self.unified.write(replace(end, attempt=self.number).serialized())

    def check_rewrite(self) -> None:
        """Raise BadOutput if a delayed task must not rewrite a file: another run has taken over the
        output, or another execution of the task has rewritten the file."""
        self.check_lease()
        if self.unified.exists():
            raise BadOutput(
                f"the files in write.path '{self.layout.output.uri}' were already rewritten by "
                "another execution of this task"
            )

    def remove_orphans(
        self, entries: Iterable[ManifestEntry], files: StoredFiles | None = None
    ) -> None:
        """Delete the data and error files of this work that these manifest entries do not name.
        `files` are those of the output, if they were listed already.

        Raises BadOutput if another run has taken over the output. Its files are never deleted: the
        files are listed before the lease is checked."""
        files = files or StoredFiles.of(self.layout)
        kept = {file.name for entry in entries for file in entry.files}
        orphans = [
            place / name
            for place, names in ((self.layout.data, files.data), (self.layout.errors, files.errors))
            for name in names
            if is_part(name, self.layout.key) and name not in kept
        ]
        if orphans:
            self.check_lease()  # after they were listed
            delete_all(orphans)

    def register(
        self,
        write: WriteTable,
        table: CommittedTable,
        rows: TableFiles,
        end: Snapshot,
        report: Report,
    ) -> None:
        """Make all rows of a table visible at once. The snapshot and the report are written first,
        so that no information is missing if the driver dies right after the commit.

        Raises BadOutput if another run has taken over the output."""
        self._put_end(end, report)
        with table_errors_as_bad_output():
            if write.mode == "error" and table.holds_rows():
                raise table_has_rows(write)
            lease, follows = self.lease, self.number > 1
            fence = Fence(lease.commit_id, lease.series_id, self.check_lease, follows)
            table.register(rows, fence)

    def check_lease(self) -> None:
        """Raise BadOutput if another run has taken over the output. That run deletes the files of
        this one, and this one must not touch the files of that run."""
        if read_lease(self.layout) != self.lease:
            raise BadOutput(
                f"write.path: another run has taken over '{self.layout.output.uri}' while this run "
                "was in progress. Run one job at a time on a path, or choose another path"
            )

    def check_open(self) -> None:
        """Raise BadOutput if a delayed task must not commit: another run has taken over the output,
        or this attempt is closed, with a commit by another execution of the task."""
        self.check_lease()
        if self.closed.exists():
            raise BadOutput(f"the output in write.path '{self.layout.output.uri}' is finished")

    def complete(self, end: Snapshot, report: Report) -> None:
        """Mark the output as complete. Only this method does so.

        Raises BadOutput if another run has taken over the output."""
        self._put_end(end, report)
        self.lease.complete(self.layout)
        self.check_lease()
        self.delete_staged()

    def delete_staged(self) -> None:
        """Delete the staged files of a complete table. If this fails, the next run deletes them."""
        if self.layout.is_table:
            with suppress(OSError):
                self.layout.data.delete_directory()

    def _put_end(self, end: Snapshot, report: Report) -> None:
        self.check_lease()
        self.layout.end.write(replace(end, attempt=self.number).serialized())
        self.layout.report.write(report.serialized())

    def put_report(self, report: Report) -> None:
        """Store the report of a failure. Raises BadOutput if another run has taken over the
        output."""
        self.check_lease()
        self.layout.report.write(report.serialized())


def start_of(layout: Layout, lease: Lease) -> Location:
    """Return the location of the snapshot with which an attempt began."""
    return lease.place(layout) / "start.json"


def parts_in(place: Location, key: str) -> list[Location]:
    """Return the data or error files of the work with this key, and the temporary files of its
    interrupted writes."""
    names = (place.below(info.path) for info in place.data_files())
    return [place / name for name in names if is_part(name, key)]


def is_part(path: str, key: str) -> bool:
    """Return whether a file belongs to the work with this key, or is left over from an interrupted
    write of such a file."""
    name = base_name(path)
    return (remnant_of(name) or name).startswith(part_prefix(key))
