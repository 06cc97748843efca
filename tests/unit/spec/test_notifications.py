"""Notifications: the request of a job that has ended, and the URLs that a platform allows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchinference.credentials import SecretVariables
from batchinference.rendering.config_map import job_file
from batchinference.rendering.policy import parse_policy
from batchinference.spec import SpecError, parse
from batchinference.spec.notifications import (
    MAX_BODY,
    MAX_VALUE,
    VALUES,
    EndedJob,
    Notification,
    is_allowed,
)
from batchinference.spec.secrets import secret_variables
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.yaml_files import read_yaml

URL = "https://hooks.example/services/T0/secret"
ENDED = EndedJob(
    *("uid/2026", "nightly", False, "team", "TooManyErrors", "3 rows failed", "s3://out"),
    *("2026-03-01T12:00:00Z", "2026-03-01T12:02:30Z"),
    {"read": 5, "written": 2, "failed": 3, "filtered": 0, "warned": 1},
)


def notification(**fields: Any) -> Notification:
    given = [{"name": "chat", "urlEnv": "URL", **fields}]
    return parse(document(notifications=given)).spec.notifications[0]


def body_of(made: Notification, ended: EndedJob = ENDED) -> Any:
    return json.loads(made.request(ended, {"URL": URL, "TOKEN": "t"})[1])


def test_request_is_a_cloud_event_by_default() -> None:
    url, body, headers = notification().request(ENDED, {"URL": f"{URL}\n"})
    assert url == URL
    assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    event = json.loads(body)
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": "uid/2026/chat",
        "type": "dev.batchinference.job.failed",
        "source": "/namespaces/team/batchinferences/nightly",
        "subject": "nightly",
        "time": "2026-03-01T12:02:30Z",
        "datacontenttype": "application/json",
    }
    assert list(data) == list(VALUES)
    assert (data["state"], data["failed"], data["duration"]) == ("failed", 3, "2m30s")


def test_values_of_the_job_are_data_in_a_body() -> None:
    texts = [f"{{{{ job.{name} }}}}" for name in VALUES]
    own = notification(body={"text": texts, "nested": {"n": 1, "keep": "{{ other }} {{DATE(x)}}"}})
    message = 'a "quoted" {{ job.output }}\n\x1b[2J", "x": 1'
    body = body_of(own, replace(ENDED, message=message))
    assert body["text"][VALUES.index("message")] == 'a "quoted" {{ job.output }} [2J", "x": 1'
    assert body["text"][VALUES.index("failed")] == "3"
    assert body["nested"] == {"n": 1, "keep": "{{ other }} {{DATE(x)}}"}


def test_unknown_values_are_empty_and_long_ones_are_shortened() -> None:
    own = notification(body={"text": "{{ job.reason }}|{{ job.read }}|{{job.message}}"})
    ended = EndedJob("id", "job", True, message="x" * 10**6)
    assert body_of(own, ended) == {"text": "||" + "x" * MAX_VALUE}
    assert body_of(notification(), ended)["source"] == "/batchinferences/job"


def test_each_request_about_one_end_has_the_same_id() -> None:
    requests = [notification(body={}).request(ENDED, {"URL": URL}) for _ in range(2)]
    assert [headers["Idempotency-Key"] for *_, headers in requests] == ["uid/2026/chat"] * 2
    assert requests[0][2]["Content-Type"].startswith("application/json")


def test_token_is_sent_as_a_bearer() -> None:
    made = notification(apiKeyEnv="TOKEN")
    _, body, headers = made.request(ENDED, {"URL": URL, "TOKEN": "s3cret\n"})
    assert headers["Authorization"] == "Bearer s3cret"
    assert b"s3cret" not in body


def test_result_of_the_job_selects_its_notifications() -> None:
    each = [notification(when=when) for when in ("always", "succeeded", "failed")]
    assert [one.when for one in ENDED.notifications_to_send(each)] == ["always", "failed"]
    assert [one.when for one in replace(ENDED, succeeded=True).notifications_to_send(each)] == [
        "always",
        "succeeded",
    ]


def test_body_that_is_too_large_is_refused(messages: Messages) -> None:
    with messages.raises(SpecError):
        notification(body={"text": "x" * MAX_BODY})


def test_driver_of_a_cluster_gets_no_notifications() -> None:
    made = parse(document(notifications=[{"name": "a", "urlEnv": "URL"}]))
    assert "notifications" not in job_file(made, "uid")


def test_variables_are_secret() -> None:
    given = [{"name": "a", "urlEnv": "HOOK", "apiKeyEnv": "TOKEN"}]
    variables = secret_variables(parse(document(notifications=given)).spec)
    assert variables == SecretVariables(("HOOK", "TOKEN"))


URLS = read_yaml(Path(__file__).with_name("urls.yaml"))
ALLOWED = ("https://hooks.example/services/", "http://alerts.monitoring:9093/")


@pytest.mark.parametrize("url", URLS["allowed"])
def test_urls_below_an_allowed_one_are_allowed(url: str) -> None:
    assert is_allowed(url, ALLOWED)


@pytest.mark.parametrize("url", URLS["not allowed"])
def test_other_urls_are_not_allowed(url: str) -> None:
    assert not is_allowed(url, ALLOWED)


def test_an_allowed_url_that_is_not_valid_allows_nothing() -> None:
    assert not is_allowed(URL, ["https://hooks.example:65536/services/"])


@pytest.mark.parametrize("port", [1, 9093, 65535])
def test_allowed_urls_have_ports(port: int) -> None:
    url = f"https://hooks.example:{port}/"
    assert parse_policy(f"notifications: ['{url}']").notifications == [url]


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_port_of_an_allowed_url_is_valid(port: int) -> None:
    with pytest.raises(SpecError):
        parse_policy(f"notifications: ['https://hooks.example:{port}/']")


@pytest.mark.parametrize("url", ["https://hooks.example", "https://hooks.example/a", "ftp://a/"])
def test_allowed_urls_end_with_a_slash(url: str, messages: Messages) -> None:
    with messages.raises(SpecError):
        parse_policy(f"notifications: ['{url}']")


def test_no_urls_are_allowed_by_default() -> None:
    assert parse_policy("").notifications == []
