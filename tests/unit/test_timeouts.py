"""The time limits of tests that wait for a cluster."""

from __future__ import annotations

from threading import Event

import pytest

from support.timeouts import FACTOR, time_limit


def test_block_that_hangs_is_ended_with_what_it_waits_for() -> None:
    with pytest.raises(AssertionError, match="minutes: recorded"), time_limit("recorded", 0.001):
        Event().wait(60)


def test_time_limit_is_longer_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FACTOR, "2")
    with pytest.raises(AssertionError, match=r"not within 0\.002 m"), time_limit("recorded", 0.001):
        Event().wait(60)


def test_time_limit_ends_with_its_block() -> None:
    with time_limit("recorded", 0.001):
        pass
    assert not Event().wait(0.2)
