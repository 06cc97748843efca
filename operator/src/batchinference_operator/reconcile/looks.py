"""When a job that goes on is looked at again, unless an event comes before."""

from __future__ import annotations

from batchinference_operator.reconcile.ending import POLL_SECONDS
from batchinference_operator.reconcile.model import Observed
from batchinference_operator.status.observations import RayJobView

SILENT_SECONDS = 10.0
"""How often a driver is asked that does not answer: each time takes a worker for a while."""
ASKS_PER_SECOND = 100.0
"""How many drivers are asked in a second: where there are more than can be, each less often."""
IDLE_SECONDS = 30.0
"""How often a job is looked at of whose pods nothing new is heard."""
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
    if not seen.driver_started:
        return IDLE_SECONDS
    often = POLL_SECONDS if observed.driver_reached else SILENT_SECONDS
    return max(often, observed.drivers / ASKS_PER_SECOND)
