"""A watch of which nothing is heard for three of its turns is dead."""

from __future__ import annotations

from pathlib import Path

import kopf
import pytest
import yaml

from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.watches import Login, Watches

RAY_JOBS = "/apis/ray.io/v1/namespaces/team/rayjobs"


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def heard(watches: Watches, *, but: str = "") -> None:
    for path in watches.silence():
        if path != but:
            watches.heard(path, watch=True)


def test_it_knows_each_kind_in_each_namespace() -> None:
    assert len(Watches(["a", "b"], 60).missing) == 6
    assert Watches([], 60).missing == [
        "/apis/batchinference.dev/v1alpha1/batchinferences",
        "/apis/ray.io/v1/rayjobs",
        "/api/v1/pods",
    ]


def test_a_list_is_a_sign_of_life_but_only_a_watch_has_begun() -> None:
    clock = Clock()
    watches = Watches(["team"], 60, clock)
    clock.seconds += 181
    watches.heard(RAY_JOBS, watch=False)
    assert RAY_JOBS not in watches.dead
    assert RAY_JOBS in watches.missing
    watches.heard(RAY_JOBS, watch=True)
    assert RAY_JOBS not in watches.missing


def test_one_dead_watch_among_others_is_found_and_may_come_back() -> None:
    clock = Clock()
    watches = Watches(["team"], 60, clock)
    heard(watches)
    clock.seconds += 120
    heard(watches, but=RAY_JOBS)
    assert watches.dead == []
    clock.seconds += 61
    assert watches.dead == [RAY_JOBS]
    watches.heard(RAY_JOBS, watch=True)
    assert watches.dead == []


def test_watches_that_never_begin_are_dead_in_the_end() -> None:
    clock = Clock()
    watches = Watches([], 60, clock)
    assert watches.dead == []
    clock.seconds += 181
    assert len(watches.dead) == 3


def test_what_else_is_watched_does_not_count() -> None:
    watches = Watches(["team"], 60)
    watches.heard("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", watch=True)
    assert len(watches.missing) == 3


def logged_in(path: Path, token: str) -> None:
    content = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))


async def test_new_credentials_are_a_new_session_and_the_same_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf does not try a session again that was refused."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    login = Login(Watches([], 60), Metrics())
    found = []
    for token in ("first", "first", "second"):
        logged_in(tmp_path / "kubeconfig", token)
        found.append(await login.login(settings=kopf.OperatorSettings()))
    first, again, second = found
    assert first is not None
    assert second is not None
    assert first is again
    assert first != second
    assert second.aiohttp_session.headers["Authorization"] == "Bearer second"
    for session in (first, second):
        await session.aiohttp_session.close()
