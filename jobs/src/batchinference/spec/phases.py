"""The phases of a job."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """The state of a job in one word, for people. Programs should read the conditions."""

    PENDING = "Pending"
    PLANNING = "Planning"
    STARTING = "Starting"
    RUNNING = "Running"
    FINALIZING = "Finalizing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RETRYING = "Retrying"


ENDED_PHASES = (Phase.SUCCEEDED, Phase.FAILED)
PROCESSING_PHASES = (Phase.RUNNING, Phase.FINALIZING)
"""The phases in which the driver processes rows."""
