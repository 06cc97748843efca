"""When a job that goes on is looked at again, unless an event comes before."""

from __future__ import annotations

from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.status.observations import RayJobView

ASKS_PER_SECOND = 100.0
"""How many drivers are asked in a second: where there are more than can be, each less often."""
IDLE_SECONDS = 30.0
"""How often a job is reconciled of which nothing new is seen. An answer of its driver comes
before."""
QUEUED_SECONDS = 120.0
"""How often Kueue is asked why it holds a RayJob back."""
NO_PODS_SECONDS = 10.0
"""How often a job is looked at whose cluster has no pods yet: why, Events alone may tell."""
REST_SECONDS = 3600.0
"""How often a job is looked at that waits for KubeRay to make its cluster. The watches tell of what
befalls it, and there may be thousands."""


def next_look(observed: Observed, seen: RayJobView) -> float:
    """Seconds until the next look."""
    if seen.held:
        return QUEUED_SECONDS
    if not seen.driver_started and not observed.pods and observed.watched:
        return NO_PODS_SECONDS if seen.awaits_pods else REST_SECONDS
    return IDLE_SECONDS


def poll_pace(drivers: int) -> float:
    """Seconds between two polls of a driver that answers, when there are so many drivers."""
    return max(POLL_SECONDS, drivers / ASKS_PER_SECOND)
