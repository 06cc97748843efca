"""Begins the first attempt of a run at its output."""

from __future__ import annotations

import json
from collections.abc import Callable

from batchinference.pipeline.commit.attempt import Attempt
from batchinference.pipeline.commit.claim import Claim
from batchinference.pipeline.commit.code_hashes import write_code
from batchinference.pipeline.commit.decision import Request, RetryFailed, Start
from batchinference.pipeline.commit.look import Found
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.secrets import without_secrets


def begin_attempt(
    spec: BatchInferenceSpec, found: Found, request: Request, serialized: Callable[[], bytes]
) -> tuple[Attempt, Snapshot]:
    """Claim the output if it starts over, and begin the next attempt. Return the attempt, and the
    snapshot of the rows that count. `serialized` returns the input snapshot.

    Raises BadOutput if another run has begun in the output."""
    layout, lease, start = found.layout, found.lease, found.start
    starts_over = start is None or lease is None
    if start is None or lease is None:
        series = found.action.series if isinstance(found.action, Start) else ""
        overwrite = request.write.mode == "overwrite"
        lease = Claim(layout, lease, overwrite, request.job, series).put()
        content = serialized()
        layout.input.write(content)
        start = Snapshot(layout.key, digest(content))
    # users fix the code before they retry failed rows
    if starts_over or isinstance(found.action, RetryFailed) or not layout.code.exists():
        write_code(layout.code, request.code)
    layout.spec.write(json.dumps(without_secrets(spec), indent=2).encode())
    return Attempt.begin(layout, lease, start, request.job, found.files), start
