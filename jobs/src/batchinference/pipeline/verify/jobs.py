"""Whose rows an output holds: those of the job that began it, and of each that has added to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from batchinference.pipeline.commit.layout import STATE_DIRECTORY, Layout
from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.commit.state import OutputState
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.storage.checksummed_json import damaged_state, load_json
from batchinference.pipeline.storage.location import Location
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.read import ReadFiles
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.write import WriteIceberg, WriteSql, WriteTable


@dataclass(frozen=True)
class Work:
    """The work of a job, as its output tells of it."""

    layout: Layout
    lease: Lease
    spec: BatchInferenceSpec
    trusted: bool = False
    """Whether the endpoints that the output names may receive the user's credentials."""

    @property
    def finished(self) -> bool:
        return self.layout.success.exists()

    @property
    def storage_of_input(self) -> Storage:
        """How the input is reached: as the output is, if both are in one store.

        Raises BadInput for an endpoint that only an untrusted output names."""
        read = self.spec.read
        if not isinstance(read, ReadFiles):
            return FROM_ENVIRONMENT
        if read.storage == self.spec.write.storage:
            return self.layout.output.storage
        if read.storage.endpoint and not (read.storage.anonymous or self.trusted):
            raise BadInput(
                f"'{self.layout.output.uri}' names the endpoint {read.storage.endpoint} for its "
                "input, which would receive your credentials. Pass --trust-output if you trust "
                "everyone who can write to the output"
            )
        return read.storage

    def trusted_places(self) -> Iterator[str]:
        """Yield the places that only this output names, and that verify connects to if it is
        trusted. In ASCII."""
        read, write = self.spec.read, self.spec.write
        storage = read.storage if isinstance(read, ReadFiles) else FROM_ENVIRONMENT
        if storage.endpoint and not storage.anonymous and storage != write.storage:
            yield f"the endpoint of its input {json.dumps(storage.endpoint)}"
        if isinstance(write, WriteIceberg):
            yield f"the Iceberg catalog {write.catalog.model_dump_json(ensure_ascii=True)}"
        if isinstance(write, WriteSql):
            address = f"in the variable {write.url_env}" if write.url_env else json.dumps(write.url)
            yield f"the database {address}"

    def committed(self) -> Snapshot:
        """What counts of the output. Raises BadOutput when that cannot be told."""
        if self.finished:
            return Snapshot.read(self.layout.end, self.lease.key)
        resumes = not self.layout.is_table  # the rows of a table count all together, at the end
        before = OutputState(self.spec.write, self.layout, self.lease, resumes).load_committed()
        return before or Snapshot(self.lease.key, "")


def places_at(output: Location) -> list[Layout]:
    """Where the state of the jobs lies that have written to an output.

    Raises BadInput when there is none."""
    try:
        if not output.exists():
            raise BadInput(f"'{output.uri}' does not exist")
        found = list(_places(output))
    except OSError as error:
        raise BadInput(f"'{output.uri}' cannot be read: {error}") from error
    if not found:
        raise BadInput(
            f"'{output.uri}' is no output of a BatchInference: it holds no "
            f"'{STATE_DIRECTORY}/job.json'"
        )
    return found


def _places(output: Location) -> Iterator[Layout]:
    state = output / STATE_DIRECTORY
    whole = Layout("", output, state, state / "errors")
    for layout in (whole, *sorted(whole.appended(), key=lambda one: one.state.path)):
        if layout.job.exists():
            yield layout


def trusted_places(output: Location) -> Iterator[str]:
    """Yield the places that only an output names, those of all jobs that have written to it.

    Raises BadInput when there is none. State that is damaged names none."""
    for layout in places_at(output):
        try:
            work = work_at(layout, trusted=True)
        except BadOutput:
            continue
        if work is not None:
            yield from work.trusted_places()


def work_at(layout: Layout, *, trusted: bool = False) -> Work | None:
    """The work whose state lies there; None when it has only claimed its place as yet.

    Raises BadOutput when that cannot be told."""
    lease = read_lease(layout)
    if lease is None or not lease.begun:
        return None
    spec = _spec_of(layout)
    # the hash is not made anew: what was secret of the work is not in what is kept of it
    layout = replace(layout, key=lease.key, is_table=isinstance(spec.write, WriteTable))
    if spec.errors.path:
        layout = replace(layout, errors=Location(spec.errors.path, layout.output.storage))
    return Work(layout, lease, spec, trusted)


def _spec_of(layout: Layout) -> BatchInferenceSpec:
    try:
        return BatchInferenceSpec.model_validate(load_json(layout.spec.read()))
    except (ValueError, FileNotFoundError):  # pydantic's error is one of the first kind
        raise damaged_state(layout.spec) from None
