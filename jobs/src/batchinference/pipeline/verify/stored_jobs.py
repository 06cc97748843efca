"""Reads which jobs have written to an output: the job that created it, and jobs that appended."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.commit.output_paths import STATE_DIRECTORY, Layout
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import damaged_state, load_json
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles, ReadVersioned
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.write import WriteTable


@dataclass(frozen=True)
class StoredJob:
    """A job, as the state in its output describes it."""

    layout: Layout
    lease: Lease
    spec: BatchInferenceSpec
    trusted: bool = False
    """Whether the user trusts the output. Only then are the endpoints in its state used."""

    @property
    def finished(self) -> bool:
        """Whether the output is complete. Asks the storage in each call."""
        return self.layout.success.exists()

    @property
    def storage_of_input(self) -> Storage:
        """The storage settings of the input: those of the output if the job used the same for both.
        Raises BadInput for other settings with an endpoint that is not trusted."""
        read = self.spec.read
        if not isinstance(read, ReadFiles | ReadVersioned):
            return FROM_ENVIRONMENT
        if read.storage == self.spec.write.storage:
            return self.layout.output.storage
        if read.storage.endpoint and not self.trusted:
            raise BadInput(
                f"'{self.layout.output.uri}' names the endpoint {read.storage.endpoint} for its "
                "input. This machine would connect to it, with your credentials unless it is "
                "anonymous. Pass --trust-output if you trust everyone who can write to the output"
            )
        return read.storage

    @property
    def merges(self) -> bool:
        """Whether the job merges its rows into a table by key."""
        return bool(self.spec.write.column_fields.get("key"))

    def committed(self) -> Snapshot:
        """Return the snapshot of the committed rows. Raises BadOutput if the state is damaged."""
        if self.finished:
            return Snapshot.read(self.layout.final_snapshot, self.lease.key)
        return JobPass(self.layout, self.lease).load_committed()


def stored_layouts(output: Location) -> list[Layout]:
    """Return the layouts of all jobs that have written to an output, without their keys. Raises
    BadInput if there are no such jobs, or if the output is unreadable."""
    try:
        if not output.exists():
            raise BadInput(f"'{output.uri}' does not exist")
        state = output / STATE_DIRECTORY
        main = Layout("", output, state, state / "errors")
        appended = sorted(main.all_appended(), key=lambda layout: layout.state.path)
        layouts = [layout for layout in (main, *appended) if layout.lease_file.exists()]
    except OSError as error:
        raise BadInput(f"'{output.uri}' cannot be read: {error}") from error
    if not layouts:
        raise BadInput(
            f"'{output.uri}' is not the output of a BatchInference: it holds no "
            f"'{STATE_DIRECTORY}/job.json'"
        )
    return layouts


def stored_job(layout: Layout, *, trusted: bool = False) -> StoredJob | None:
    """Return the job whose state is in this layout. None if a run has only claimed the output.
    Raises BadOutput if the state is damaged."""
    lease = read_lease(layout)
    if lease is None or not lease.begun:
        return None
    try:
        spec = BatchInferenceSpec.model_validate(load_json(layout.spec.read()))
    except (ValueError, FileNotFoundError):  # pydantic's ValidationError is a ValueError
        raise damaged_state(layout.spec) from None
    # the stored spec has no secrets, so its key differs
    layout = replace(layout, key=lease.key, is_table=isinstance(spec.write, WriteTable))
    if spec.errors.path:
        layout = replace(layout, errors=Location(spec.errors.path, layout.output.storage))
    return StoredJob(layout, lease, spec, trusted)
