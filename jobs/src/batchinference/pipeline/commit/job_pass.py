"""A pass, which is one attempt to complete an output: its beginning, its commits, and its end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from batchinference.pipeline.commit.heartbeat import keep_heartbeat
from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.commit.manifest import Manifest, ManifestEntry, parse_manifest_name
from batchinference.pipeline.commit.output_paths import Layout, PathAttribute, part_prefix
from batchinference.pipeline.commit.snapshot import ListedFiles, Snapshot, without_missing_files
from batchinference.pipeline.commit.table_commit import (
    CommittedTable,
    Fence,
    TableFiles,
    table_errors_as_bad_output,
)
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import (
    Guard,
    Location,
    base_name,
    delete_all,
    remnant_of,
)
from batchinference.spec.progress import Counts

if TYPE_CHECKING:
    from batchinference.spec.report import Report
    from batchinference.spec.write import WriteTable

FETCH_THREADS = 16


@dataclass(frozen=True)
class JobPass:
    """One pass at an output. Each task that commits gets a copy of this object."""

    layout: Layout
    lease: Lease

    @classmethod
    def begin(
        cls,
        layout: Layout,
        before: Lease | None,
        start: Snapshot,
        job: str = "",
        files: ListedFiles | None = None,
        changed: Mapping[str, bytes] | None = None,
    ) -> JobPass:
        """Begin the pass that follows the lease `before`, and return it. From now on, only commits
        in the snapshot `start` and commits of this pass are valid. All other data and error files
        of the work are deleted. Raises BadOutput if another run has begun in the output. `job` is
        the identity of the job. `files` is a listing of the output, if there is one. `changed` has
        the new contents of state files, by attribute of `Layout`."""
        number, series = (before.pass_number + 1, before.series) if before else (1, "")
        lease = Lease.new(layout, number, job=job, series=series)
        job_pass = cls(layout, lease)
        state = [(getattr(layout, name), content) for name, content in (changed or {}).items()]
        for file, content in state:
            (job_pass.directory / base_name(file.path)).write(content)
        start_file(layout, lease).write(replace(start, pass_number=number).serialized())
        lease.write_if_unchanged(layout, before)
        with job_pass.keep_heartbeat():
            if before is not None and before.begun:  # a claim has already deleted the marker
                layout.success.delete_if(job_pass.guard)
            for file, content in state:  # only now is the output certainly not complete
                file.write_if(job_pass.guard, content)
            job_pass.remove_orphans(start.entries, files)
        return job_pass

    @property
    def number(self) -> int:
        """The number of the pass. It begins at 1, also after a user has deleted the state."""
        return self.lease.pass_number

    @property
    def directory(self) -> Location:
        """The directory of the manifests of this pass."""
        return self.lease.pass_directory(self.layout)

    @property
    def guard(self) -> Guard:
        """The guard of changes that only the holder of the lease may make."""
        return Guard(self.layout.lease_file, self.check_lease)

    def keep_heartbeat(self) -> AbstractContextManager[None]:
        """Return a context manager that writes the heartbeat of the pass."""
        return keep_heartbeat(self.layout, self.lease)

    changed_input = PathAttribute("input.parquet", "directory")
    """The input snapshot, if it differs from the one of the previous pass."""
    changed_code = PathAttribute("code.json", "directory")
    """The hashes of the code, if they differ from those of the previous pass."""
    closed_file = PathAttribute("closed", "directory")
    """A file that exists as soon as no task may commit any more."""
    unified_snapshot = PathAttribute("unified.json", "directory")
    """The final snapshot after data files were rewritten, for example to unify their schemas. The
    old data files are deleted after this snapshot is written."""

    def load_committed(self) -> Snapshot:
        """Return the snapshot of the committed rows, without entries whose files are missing.
        Raises BadOutput if a stored snapshot is damaged."""
        return self.load_committed_files()[0]

    def load_committed_files(self) -> tuple[Snapshot, ListedFiles]:
        """Return the snapshot of `load_committed`, and the listing of files that it is based on."""
        committed, files = self._committed(), ListedFiles.of(self.layout)
        return without_missing_files(self.layout, committed, files), files

    def _committed(self) -> Snapshot:
        for file in (self.layout.final_snapshot, self.unified_snapshot):
            if file.exists():
                final = Snapshot.read(file, self.layout.key)
                if final.pass_number == self.number:  # an earlier pass may have written the file
                    return final
        start = Snapshot.read(start_file(self.layout, self.lease), self.layout.key)
        return start.with_commits(self.manifests())

    def counts(self) -> Counts:
        """Return the counts of the rows that this pass has committed, from the names of manifests.
        If a task ran twice, each of its commits counts once, with the first manifest by name."""
        commits = sorted(self._commits(), reverse=True)
        return Counts.sum({commit: counts for _, commit, counts in commits}.values())

    def manifests(self, task: int | None = None) -> list[Manifest]:
        """Return the manifests of the pass, or of one task, in the order of their names. Damaged
        manifests do not count as commits and are left out."""
        names = sorted(name for name, (writer, _), _ in self._commits() if task in (None, writer))
        with ThreadPoolExecutor(FETCH_THREADS) as pool:
            manifests = pool.map(self._manifest, names)
            return [manifest for manifest in manifests if manifest is not None]

    def failed_entries(self) -> Iterator[ManifestEntry]:
        """Yield all entries of manifests that count failed rows. Fetches one manifest at a time."""
        for name, _, counts in self._commits():
            if counts.failed and (manifest := self._manifest(name)) is not None:
                yield from manifest.entries

    def warned_manifests(
        self, known: Collection[tuple[int, int]], limit: int
    ) -> Iterator[tuple[tuple[int, int], Manifest]]:
        """Yield up to `limit` commits that have warnings and are not in `known`. Yields the numbers
        of the task and of its commit, and the manifest."""
        commits = (
            (name, commit)
            for name, commit, counts in self._commits()
            if counts.warned and commit not in known
        )
        for name, commit in islice(commits, limit):
            if (manifest := self._manifest(name)) is not None:
                yield commit, manifest

    def _manifest(self, name: str) -> Manifest | None:
        try:
            manifest = Manifest.parse((self.directory / name).read())
        except (ValueError, FileNotFoundError):
            return None
        return manifest if manifest.is_of(self.layout.key) else None

    def _commits(self) -> Iterator[tuple[str, tuple[int, int], Counts]]:
        """Yield the name of each manifest, the numbers of its task and commit, and its counts."""
        for info in self.directory.files():
            name = base_name(info.path)
            if parsed := parse_manifest_name(name):
                yield name, *parsed

    def stop_commits(self) -> None:
        """Let tasks commit no more. Raises BadOutput if another run has taken over the output."""
        self.check_lease()
        self.closed_file.write(b"")

    def write_unified_snapshot(self, final: Snapshot) -> None:
        """Write the final snapshot after files were rewritten. From now on, the old files are
        invalid. Raises BadOutput if another run has taken over the output."""
        self.check_lease()
        self.unified_snapshot.write(replace(final, pass_number=self.number).serialized())

    def check_can_rewrite(self) -> None:
        """Raise BadOutput if a delayed task must not rewrite a file. Another run may have taken
        over the output, or other executions of the tasks may have rewritten all files."""
        self.check_lease()
        if self.unified_snapshot.exists():
            raise BadOutput(
                f"the files in write.path '{self.layout.output.uri}' were already rewritten by "
                "another execution of this task"
            )

    def remove_orphans(
        self, entries: Iterable[ManifestEntry], files: ListedFiles | None = None
    ) -> None:
        """Delete the data and error files of this work that no manifest entry in `entries` names.
        `files` is a listing of the output; None to list it here. Raises BadOutput if another run
        has taken over the output. The lease is checked after the listing, so later files of another
        run are never deleted."""
        files, layout = files or ListedFiles.of(self.layout), self.layout
        committed = {file.name for entry in entries for file in entry.files}
        orphans = [
            directory / name
            for directory, names in ((layout.data, files.data), (layout.errors, files.errors))
            for name in names
            if is_work_file(name, layout.key) and name not in committed
        ]
        if orphans:
            self.check_lease()
            delete_all(orphans)

    def commit_table(
        self,
        write: WriteTable,
        table: CommittedTable,
        rows: TableFiles,
        final: Snapshot,
        report: Report,
    ) -> None:
        """Commit all rows to a table at once. Raises BadOutput if another run has taken over the
        output, or if the table refuses the rows. The final snapshot and the report are written
        before the commit. They exist even if the driver dies right after it."""
        self._write_final_state(final, report)
        with table_errors_as_bad_output():
            lease, is_later = self.lease, self.number > 1
            fence = Fence(lease.commit_id, lease.series_id, self.check_lease, is_later)
            table.register(rows, fence)

    def check_lease(self) -> None:
        """Raise BadOutput if another run has taken over the output. That run deletes files of this
        pass, so this pass must not change the output any more."""
        if read_lease(self.layout) != self.lease:
            raise BadOutput(
                f"write.path: another run has taken over '{self.layout.output.uri}' while this run "
                "was in progress. Run one job at a time on a path, or choose another path"
            )

    def check_can_commit(self) -> None:
        """Raise BadOutput if a task is too late to commit. Either another run has taken over the
        output, or the driver has closed the pass."""
        self.check_lease()
        if self.closed_file.exists():
            raise BadOutput(f"the output in write.path '{self.layout.output.uri}' is finished")

    def mark_complete(self, final: Snapshot, report: Report) -> None:
        """Write the final snapshot, the report and the completion marker. Then delete staged files.
        Raises BadOutput if another run has taken over the output."""
        self._write_final_state(final, report)
        try:
            self.lease.write_success_marker(self.layout, self.guard)
        except OSError:  # also if the marker was written, and only the answer was lost
            if not self.lease.has_completed(self.layout):
                raise
        with suppress(OSError):  # not necessary: the output is already complete
            self.delete_staged_files()

    def delete_staged_files(self) -> None:
        """Delete the staged files of a complete table. After an OSError, the next run does it.
        Raises BadOutput if another run has taken over the output."""
        if self.layout.is_table:
            self.layout.data.delete_directory_if(self.guard)

    def _write_final_state(self, final: Snapshot, report: Report) -> None:
        content = replace(final, pass_number=self.number).serialized()
        self.layout.final_snapshot.write_if(self.guard, content)
        self.write_report(report)

    def write_report(self, report: Report) -> None:
        """Write the report. Raises BadOutput if another run has taken over the output."""
        self.layout.report.write_if(self.guard, report.serialized())


def start_file(layout: Layout, lease: Lease) -> Location:
    """Return the location of the snapshot with which a pass has begun."""
    return lease.pass_directory(layout) / "start.json"


def work_files_in(directory: Location, key: str) -> list[Location]:
    """Return the files of `is_work_file` in a directory."""
    names = (directory.relative(info.path) for info in directory.data_files())
    return [directory / name for name in names if is_work_file(name, key)]


def is_work_file(path: str, key: str) -> bool:
    """Return whether a file is a data or error file of the work with this key. The remnant of an
    interrupted write of such a file also counts."""
    name = base_name(path)
    return (remnant_of(name) or name).startswith(part_prefix(key))
