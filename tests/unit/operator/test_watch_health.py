"""The health of the watches: a watch without a response for three periods is dead."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import kopf
import pytest

from batchinference_operator.kube.kopf_session import EndlessBackoffs, KopfLogin
from batchinference_operator.kube.watch_health import WatchHealth
from batchinference_operator.observability.metrics import Metrics
from support.operator.virtual_time import ManualClock
from support.servers.kubeconfig import write_kubeconfig
from support.servers.scripted_http import Serve, answering

RAY_JOBS = "/apis/ray.io/v1/namespaces/team/rayjobs"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def record_all_answers(watches: WatchHealth, *, but: str = "") -> None:
    for path in watches._last_answer:
        if path != but:
            watches.record_answer(path, watch=True)


def test_each_kind_is_watched_in_each_namespace() -> None:
    assert len(WatchHealth(["a", "b"], 60).missing) == 8
    watches = WatchHealth([], 60)
    expected = [
        "/apis/batchinference.dev/v1beta1/batchinferences",
        "/apis/batchinference.dev/v1beta1/batchinferenceschedules",
        "/apis/ray.io/v1/rayjobs",
        "/api/v1/pods",
    ]
    assert watches.missing == expected
    watches.record_answer("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", watch=True)
    assert watches.missing == expected, "watches of other kinds do not count"


def test_list_is_an_answer_but_does_not_start_a_watch(clock: ManualClock) -> None:
    watches = WatchHealth(["team"], 60, lambda: clock.seconds)
    clock.seconds += 181
    watches.record_answer(RAY_JOBS, watch=False)
    assert RAY_JOBS not in watches.dead
    assert RAY_JOBS in watches.missing
    watches.record_answer(RAY_JOBS, watch=True)
    assert RAY_JOBS not in watches.missing


def test_dead_watch_is_detected_and_may_recover(clock: ManualClock) -> None:
    watches = WatchHealth(["team"], 60, lambda: clock.seconds)
    record_all_answers(watches)
    clock.seconds += 120
    record_all_answers(watches, but=RAY_JOBS)
    assert watches.dead == []
    clock.seconds += 61
    assert watches.dead == [RAY_JOBS]
    watches.record_answer(RAY_JOBS, watch=True)
    assert watches.dead == []


def test_watches_that_never_start_are_dead(clock: ManualClock) -> None:
    watches = WatchHealth([], 60, lambda: clock.seconds)
    assert watches.dead == []
    clock.seconds += 181
    assert len(watches.dead) == 4


async def test_only_new_credentials_give_a_new_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf does not use a session again after the API server refused it."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    login = KopfLogin(WatchHealth([], 60), Metrics().record_request)
    result = []
    for token in ("first", "first", "second"):
        write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1", token)
        result.append(await login.login(settings=kopf.OperatorSettings()))
    first, again, second = result
    assert first is not None
    assert second is not None
    assert first is again
    assert first != second
    assert second.aiohttp_session.headers["Authorization"] == "Bearer second"
    for session in (first, second):
        await session.aiohttp_session.close()


def test_lost_namespace_is_ignored_until_it_is_watched_again(clock: ManualClock) -> None:
    watches = WatchHealth(["gone", "team"], 60, lambda: clock.seconds)
    record_all_answers(watches)
    lost = "/apis/ray.io/v1/namespaces/gone/rayjobs"
    watches.record_refusal(lost, "403")
    assert watches.lost_namespaces == {"gone"}
    clock.seconds += 181
    record_all_answers(watches, but=lost)
    assert watches.dead == []
    watches.record_answer(lost, watch=False)
    assert watches.lost_namespaces == set()


def test_operator_that_lost_all_namespaces_is_dead(clock: ManualClock) -> None:
    watches = WatchHealth(["team"], 60, lambda: clock.seconds)
    watches.record_refusal(RAY_JOBS, "403")
    clock.seconds += 181
    assert RAY_JOBS in watches.dead


async def test_kopf_keeps_retrying_a_refused_watch(serve: Serve) -> None:
    """After its own retries, kopf would stop all watches and the operator."""
    server = await serve(answering(403, {"kind": "Status"}))
    watches = WatchHealth(["team"], 60)
    login = KopfLogin(watches, Metrics().record_request)
    session = login._new_session(kopf.ConnectionInfo(server=server.url)).aiohttp_session
    async with session:
        for seconds in islice(EndlessBackoffs(), 20):
            assert (await session.get(f"{server.url}{RAY_JOBS}")).status == 403
            assert 1 <= seconds <= 20
    assert watches.lost_namespaces == set(), "it has no other namespace"
    assert watches._refused == {RAY_JOBS}
