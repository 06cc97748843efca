"""Which trouble of storage is waited out, and for how long."""

from __future__ import annotations

import errno

import pytest

from batchinference.pipeline import retries
from batchinference.pipeline.retries import ATTEMPTS, is_passing, persistently

PASSING = [
    OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject operation"),
    OSError("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate"),
    OSError("AWS Error UNKNOWN (HTTP status 503) during GetObject operation: No response body."),
    OSError("AWS Error UNKNOWN (HTTP status 429) during GetObject operation"),
    OSError("Azure Error: [ServerBusy] 503 Server busy"),
    OSError("Azure Error: [] Fail to get a new connection for: https://a. Could not connect"),
    OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.ETIMEDOUT, "Connection timed out"),
]
LASTING = [
    FileNotFoundError(errno.ENOENT, "Path does not exist"),
    OSError("AWS Error ACCESS_DENIED during GetObject operation: Access Denied"),
    OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation"),
    OSError("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation"),
    OSError("Azure Error: [AuthorizationFailure] 403 Server failed to authenticate the request"),
    OSError("google::cloud::Status(PERMISSION_DENIED: no"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError("Corrupt snappy compressed data."),
]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would have been slept."""
    slept: list[float] = []
    monkeypatch.setattr(retries.time, "sleep", slept.append)
    return slept


class Call:
    """Fails so many times."""

    def __init__(self, error: OSError, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "done"


@pytest.mark.parametrize("error", PASSING, ids=str)
def test_trouble_that_passes_is_waited_out(error: OSError) -> None:
    call = Call(error, ATTEMPTS - 1)
    assert is_passing(error)
    assert persistently(call) == "done"
    assert call.calls == ATTEMPTS


@pytest.mark.parametrize("error", LASTING, ids=str)
def test_what_time_does_not_heal_is_raised_at_once(error: OSError, waits: list[float]) -> None:
    call = Call(error, 1)
    assert not is_passing(error)
    with pytest.raises(OSError) as raised:  # noqa: PT011 - it is this very one
        persistently(call)
    assert raised.value is error
    assert (call.calls, waits) == (1, [])


def test_trouble_that_stays_is_raised_in_the_end(waits: list[float]) -> None:
    call = Call(PASSING[0], 99)
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        persistently(call)
    assert call.calls == ATTEMPTS
    assert len(waits) == ATTEMPTS - 1


def test_each_wait_is_longer_and_none_is_the_same(waits: list[float]) -> None:
    for _ in range(2):
        persistently(Call(PASSING[0], ATTEMPTS - 1))
    first, second = waits[: ATTEMPTS - 1], waits[ATTEMPTS - 1 :]
    for number, wait in enumerate(first):
        assert 2**number / 2 <= wait <= 2**number
    assert first != second
