"""Steps that run in one stage, as in an actor."""

from __future__ import annotations

from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.storage.location import Location
from batchinference.plan.stages import stages_of
from support.documents.minimal import Document
from support.documents.parsed import steps_of
from support.outputs.batches import Run, as_one_batch

TOLERANT = ErrorHandling(tolerant=True, input=Location("/nowhere/input.parquet"))
"""Failed rows do not fail the job."""


def in_one_stage(*steps: Document, errors: ErrorHandling = TOLERANT) -> Run:
    """Return a function that runs steps over a batch and returns all results as one batch."""
    (stage,) = stages_of(steps_of(*steps))
    return as_one_batch(SegmentRunner([stage], errors))
