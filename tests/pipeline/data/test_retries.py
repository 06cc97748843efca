"""Storage errors: which are retried, and for how long."""

from __future__ import annotations

import errno

import pytest

from batchinference.pipeline.error_attribution import is_transient
from batchinference.pipeline.storage import retry
from batchinference.pipeline.storage.retry import ATTEMPTS, with_retries

TRANSIENT = [
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
PERMANENT = [
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
    """Replace sleep, and return the list of the seconds that each call was asked to sleep."""
    slept: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", slept.append)
    return slept


class Call:
    """A call that fails a given number of times."""

    def __init__(self, error: OSError, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "done"


def test_temporary_errors_are_retried() -> None:
    for error in TRANSIENT:
        call = Call(error, ATTEMPTS - 1)
        assert is_transient(error), error
        assert with_retries(call) == "done"
        assert call.calls == ATTEMPTS


def test_permanent_errors_are_raised_at_once(waits: list[float]) -> None:
    for error in PERMANENT:
        call = Call(error, 1)
        assert not is_transient(error), error
        with pytest.raises(OSError) as raised:  # noqa: PT011 - the same object
            with_retries(call)
        assert raised.value is error
        assert (call.calls, waits) == (1, [])


def test_last_error_is_raised_after_all_attempts(waits: list[float]) -> None:
    call = Call(TRANSIENT[0], 99)
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        with_retries(call)
    assert call.calls == ATTEMPTS
    assert len(waits) == ATTEMPTS - 1


def test_backoff_doubles_with_jitter(waits: list[float]) -> None:
    for _ in range(2):
        with_retries(Call(TRANSIENT[0], ATTEMPTS - 1))
    first, second = waits[: ATTEMPTS - 1], waits[ATTEMPTS - 1 :]
    for number, wait in enumerate(first):
        assert 2**number / 2 <= wait <= 2**number
    assert first != second
