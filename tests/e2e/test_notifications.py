"""Notifications on a cluster: the operator sends them, to addresses that the platform allows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchinference.spec.notifications import SECRET
from support.cluster.deployment import RELEASE, upgraded
from support.cluster.kubectl import Kubectl, condition, eventually
from support.cluster.programs import start_program
from support.cluster.waits import JOB_END, kill, patch, pods, wait_for_phase, wait_for_rows

pytestmark = [pytest.mark.long("lifecycle"), pytest.mark.timeout(900)]
Job = dict[str, Any]
RECEIVER = """
import collections, http.server, json
seen = collections.Counter()

class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        seen[key] += 1
        fields = {"path": self.path, "key": key, "body": body, "agent": self.headers["User-Agent"]}
        print(json.dumps(fields), flush=True)
        status = 503 if self.path == "/hook/flaky" and seen[key] == 1 else 200
        self.send_response(302 if self.path == "/hook/moved" else status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("", 8080), Receiver).serve_forever()
"""
SENT = 120
"""Seconds that the notifications may take after the end of a job."""


@pytest.fixture(scope="module")
def receiver(kubectl: Kubectl) -> Iterator[str]:
    """Start a receiver of webhooks that the platform allows below /hook/. Yield its address."""
    start_program(kubectl, "webhook", RECEIVER, 8080, seconds=280)
    address = f"http://webhook.{kubectl.namespace}.svc.cluster.local:8080"
    paths = {"FLAKY": "/hook/flaky", "MOVED": "/hook/moved", "OUTSIDE": "/outside"}
    urls = {name: f"{address}{path}" for name, path in paths.items()}
    meta = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}
    kubectl.apply({**meta, "stringData": urls})
    policy = {"notifications": [f"{address}/hook/"]}
    with upgraded({"policy": policy, "networkPolicy": {"enabled": True}}):
        yield address


def received(kubectl: Kubectl, name: str) -> list[dict[str, Any]]:
    """Return the requests about a job."""
    lines = map(json.loads, kubectl("logs", "webhook").splitlines())
    return [one for one in lines if name in json.dumps(one["body"])]


def notified(kubectl: Kubectl, name: str, value: str) -> Job:
    """Return the condition Notified of a job once it has this value."""
    result = eventually(
        f"Notified of {name} is {value}",
        lambda: condition(kubectl.status(name), "Notified", value),
        SENT,
    )
    assert result is not None
    return result


def hooks(*variables: str, **fields: Any) -> list[Job]:
    return [{"name": name.lower(), "urlEnv": name, **fields} for name in variables]


def test_notification_is_refused_without_the_policy(
    kubectl: Kubectl, slow_job: Callable[[str], Job]
) -> None:
    """Runs first: the operator of the suite allows none, and may read no Secret."""
    job = slow_job("refused")
    job["spec"]["notifications"] = hooks("FLAKY")
    with pytest.raises(AssertionError, match=r"policy\.notifications: none"):
        kubectl.apply(job)
    allowed = kubectl.get("clusterrole", f"{RELEASE}-batch-inference-operator") or {}
    secrets = [rule for rule in allowed["rules"] if "secrets" in rule["resources"]]
    assert [rule["verbs"] for rule in secrets] == [["create"]]


def test_end_of_a_job_is_sent_until_it_arrives(
    receiver: str,
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("told")
    job["spec"]["notifications"] = hooks("FLAKY")
    name = create(job)
    open_gate(job)
    kubectl.wait_complete(name, JOB_END)
    notified(kubectl, name, "True")
    first, again = received(kubectl, name)
    assert first["key"] == again["key"]
    assert first["body"] == again["body"]
    event = first["body"]
    assert (event["type"], event["subject"]) == ("dev.batchinference.job.succeeded", name)
    assert event["data"]["written"] == kubectl.status(name)["counts"]["written"]
    assert "aiohttp" in first["agent"], "only the operator sends it"


def test_job_whose_pods_die_is_sent_as_failed(
    receiver: str, kubectl: Kubectl, slow_job: Callable[[str], Job], create: Callable[[Job], str]
) -> None:
    job = slow_job("dead")
    job["spec"] |= {
        "retry": {"maxAttempts": 1},
        "notifications": hooks(
            "FLAKY", when="failed", body={"text": "{{ job.name }}: {{ job.reason }}"}
        ),
    }
    name = create(job)
    wait_for_rows(kubectl, name)
    kill(kubectl, [*pods(kubectl, name, "head"), *pods(kubectl, name, "worker")])
    patch(kubectl, name, deadlines={"active": "1s"})  # not earlier: pods may start slowly
    status = wait_for_phase(kubectl, name, "Failed")
    notified(kubectl, name, "True")
    cause = condition(status, "Failed", "True") or {}
    assert received(kubectl, name)[-1]["body"] == {"text": f"{name}: {cause['reason']}"}


def test_failing_and_forbidden_addresses_change_no_result(
    receiver: str,
    kubectl: Kubectl,
    slow_job: Callable[[str], Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
) -> None:
    job = slow_job("untold")
    job["spec"]["notifications"] = hooks("MOVED", "OUTSIDE", "MISSING")
    name = create(job)
    open_gate(job)
    kubectl.wait_complete(name, JOB_END)
    message = notified(kubectl, name, "False")["message"]
    assert all(f"{each}: " in message for each in ("moved", "outside", "missing"))
    assert receiver + "/outside" not in message
    assert {one["path"] for one in received(kubectl, name)} == {"/hook/moved"}
    assert kubectl.status(name)["phase"] == "Succeeded"
    events = [one["reason"] for one in kubectl.list("events")
              if one["involvedObject"]["name"] == name]  # fmt: skip
    assert "NotificationFailed" in events
