"""The field `notifications`: webhooks that are called when a job has ended, and their requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field

from batchinference.spec.arguments import JsonObject, texts_in
from batchinference.spec.base import DNS_LABEL, SpecModel, Variable, invalid
from batchinference.spec.durations import duration_text, time_of
from batchinference.text import in_one_line

SECRET = "batchinference-notifications"  # noqa: S105
"""The name of the Secret that has the variables of notifications on a cluster."""
ID_HEADER = "Idempotency-Key"
MAX_BODY = 8192
"""Maximum bytes of `body` as JSON, because the operator keeps all jobs in memory."""
MAX_VALUE = 1024
"""Maximum characters of a value in a request."""
ROWS = ("read", "written", "failed", "filtered")
VALUES = (
    *("name", "namespace", "state", "reason", "message", "output"),
    *("startTime", "completionTime", "duration", *ROWS),
)
"""Names that a body can refer to as `{{ job.NAME }}`."""
_REFERENCE = re.compile(r"\{\{ *job\.([A-Za-z]+) *\}\}")
_LIKE_REFERENCE = re.compile(rf"\{{\{{\s*(?:job\b[^}}]*|(?:{'|'.join(VALUES)})\s*)\}}\}}")
_PLAIN_URL = re.compile(
    r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/[A-Za-z0-9._~!$&'()*+,;=:@/-]*"
    r"(\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?"
)
"""URLs that all programs parse in the same way: no user, no escapes in the path, no fragment."""
_TYPE = "dev.batchinference.job"


def _check_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body. Raises a validation error if it is too large or has unknown references."""
    if (size := len(json.dumps(body))) > MAX_BODY:
        raise invalid(f"as JSON, it has {size} bytes, and {MAX_BODY} are allowed. Shorten it")
    for text in texts_in(body):
        for reference in _LIKE_REFERENCE.finditer(text):
            known = _REFERENCE.fullmatch(reference[0])
            if known is None or known[1] not in VALUES:
                fix = f"Write {{{{ job.NAME }}}}: one of {', '.join(VALUES)}"
                raise invalid(f"'{reference[0]}' is not a value of a job. {fix}")
    return body


class Notification(SpecModel):
    """A webhook that is called when the job has ended. The request is a CloudEvent, or `body`."""

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
    """The name of the notification."""
    url_env: Variable
    """The environment variable with the URL. On a cluster, the key with the URL in the Secret
    `batchinference-notifications` in the namespace of the job."""
    api_key_env: Variable | None = None
    """The environment variable with the token that is sent as `Authorization: Bearer`. On a
    cluster, the key with the token in the Secret `batchinference-notifications`."""
    when: Literal["always", "succeeded", "failed"] = "always"
    """The result of the job after which the request is sent."""
    body: Annotated[JsonObject, AfterValidator(_check_body)] | None = None
    """The JSON object to send instead of a CloudEvent. In its texts, `{{ job.NAME }}` stands for a
    value of the job, such as `{{ job.state }}` or `{{ job.message }}`."""

    def request(
        self, job: EndedJob, variables: Mapping[str, str]
    ) -> tuple[str, bytes, dict[str, str]]:
        """Return the URL, the body and the headers of the POST request about a job. The URL and the
        headers are secret. Raises KeyError with the name of a missing variable."""
        key = f"{job.id}/{self.name}"
        if self.body is None:
            kind, content = "application/cloudevents+json", {"id": key, **job.cloud_event}
        else:
            kind, content = "application/json", _filled(self.body, job.values)
        headers = {"Content-Type": f"{kind}; charset=utf-8", ID_HEADER: key}
        if self.api_key_env is not None:
            headers["Authorization"] = f"Bearer {variables[self.api_key_env].strip()}"
        return variables[self.url_env].strip(), json.dumps(content).encode(), headers


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a JSON value with the references in its texts replaced by values of a job."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: str(values.get(match[1], "")), value)
    if isinstance(value, dict):
        return {name: _filled(child, values) for name, child in value.items()}
    return [_filled(child, values) for child in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class EndedJob:
    """The end of a job, as notifications describe it. A job may end again, with another `id`."""

    id: str
    name: str
    succeeded: bool
    namespace: str | None = None
    reason: str | None = None
    message: str | None = None
    output: str | None = None
    start_time: str | None = None
    completion_time: str | None = None
    counts: Mapping[str, Any] = field(default_factory=dict)

    def notifications_to_send(self, notifications: Iterable[Notification]) -> list[Notification]:
        """Return the notifications that are sent about the result of this job."""
        return [one for one in notifications if one.when in ("always", self._state)]

    @property
    def _state(self) -> str:
        return "succeeded" if self.succeeded else "failed"

    @property
    def values(self) -> dict[str, str | int]:
        """The values of the names in VALUES, without unknown ones. Texts are in one line, and cut
        to MAX_VALUE characters."""
        start, end = (time_of(text or "") for text in (self.start_time, self.completion_time))
        texts = {
            "name": self.name,
            "namespace": self.namespace,
            "state": self._state,
            "reason": self.reason,
            "message": self.message,
            "output": self.output,
            "startTime": self.start_time,
            "completionTime": self.completion_time,
            "duration": start and end and duration_text(max(0, (end - start).total_seconds())),
        }
        values = {name: in_one_line(text)[:MAX_VALUE] for name, text in texts.items() if text}
        return {**values, **{name: self.counts[name] for name in ROWS if name in self.counts}}

    @property
    def cloud_event(self) -> dict[str, Any]:
        """The CloudEvent 1.0 about the end of the job, without the id of the event."""
        prefix = f"namespaces/{self.namespace}/" if self.namespace else ""
        time = {"time": self.completion_time} if self.completion_time else {}
        return {
            "specversion": "1.0",
            "type": f"{_TYPE}.{self._state}",
            "source": f"/{prefix}batchinferences/{quote(self.name, safe='')}",
            "subject": self.name,
            **time,
            "datacontenttype": "application/json",
            "data": self.values,
        }


def problem_of(status: int) -> str:
    """Return why a request has failed, by the HTTP status; empty if it has not failed. A redirect
    is a failure, because redirects are not followed."""
    return "" if 200 <= status < 300 else f"the endpoint answers {status}"


def is_retryable(status: int) -> bool:
    """Return whether a request is sent again after a response with this HTTP status."""
    return status in (408, 425, 429) or status >= 500


def is_allowed(url: str, prefixes: Iterable[str]) -> bool:
    """Return whether a URL begins with one of these prefixes, which end with a slash. It must be a
    _PLAIN_URL without the segments `.` and `..`. An absent port is the default port."""
    if not _PLAIN_URL.fullmatch(url):
        return False
    names = {part.partition(";")[0] for part in urlsplit(url).path.split("/")}
    if {".", ".."} & names:  # for some servers, `..;a` is `..`
        return False
    allowed = filter(None, map(_normalized, prefixes))
    return any(_normalized(url).startswith(prefix) for prefix in allowed)


def _normalized(url: str) -> str:
    """Return a URL with an explicit port and without its query; empty if the port is invalid."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return ""
    if port is None:
        port = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path}"
