"""Records the nodes on which a device has failed. The next attempts avoid these nodes."""

from itertools import takewhile

from batchinference.spec.report import Report
from batchinference.spec.status import MAX_FAULTY_NODES
from batchinference_operator.status.attempts import last_attempt, update_last
from batchinference_operator.status.job_status import Status


def record_faulty_nodes(status: Status, report: Report | None) -> Status:
    """Return the status with the nodes on which a device failed in the running attempt. Nodes in
    the status are kept, because a restarted driver reports only its own nodes."""
    if report is None or not report.faulty_nodes:
        return status
    known = last_attempt(status).get("faultyNodes", [])
    nodes = list(dict.fromkeys([*known, *report.faulty_nodes]))  # each once, oldest first
    return update_last(status, faultyNodes=nodes[:MAX_FAULTY_NODES])


def faulty_nodes(status: Status) -> list[str]:
    """Return the nodes on which a device failed in an attempt since the last suspension."""
    attempts = reversed(status.get("attempts", []))
    recent = takewhile(lambda one: one.get("outcome") != "Suspended", attempts)
    return sorted({node for one in recent for node in one.get("faultyNodes", [])})
