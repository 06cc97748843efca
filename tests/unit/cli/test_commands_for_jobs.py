"""`status`, `logs` and other commands for jobs on a cluster."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from batchinference.api.targets import Target
from batchinference.cli.exit_on_error import read_output
from batchinference.cli.printing import Format
from batchinference.cli.show_status import show_status

STORE = "http://s3.storage.svc:7070"
TIMES = {"startTime": "2026-03-01T12:00:00Z", "completionTime": "2026-03-01T12:05:33Z"}


class Cluster:
    """A cluster with one job, which has these variables and this status."""

    def __init__(self, status: Any = None, **env: Any) -> None:
        variables = [{"name": name, **value} for name, value in env.items()]
        spec = {"write": {"path": "s3://data/out"}, "cluster": {"env": variables}}
        self.job = {"metadata": {"name": "daily"}, "spec": spec, "status": status or {}}

    def get(self, name: str) -> Any:
        return self.job


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that returns the job `daily` of a cluster."""

    def target(cluster: Cluster) -> Target:
        monkeypatch.setattr(Target, "cluster", lambda self: cluster)
        return Target("daily")

    return target


def fail(output: str) -> None:
    raise OSError("Could not resolve host: data.s3.us-east-1.amazonaws.com")


@pytest.mark.parametrize(
    ("env", "here", "shown"),
    [
        ({"AWS_ENDPOINT_URL": {"value": STORE}}, {}, f"AWS_ENDPOINT_URL={STORE}"),
        ({"AWS_ENDPOINT_URL": {"value": "http://u:pw@s3"}}, {}, "AWS_ENDPOINT_URL=http://"),
        ({"AWS_ENDPOINT_URL": {"value": STORE}, "AWS_ENDPOINT_URL_S3": {"value": "http://b"}}, {},
         "AWS_ENDPOINT_URL_S3=http://b"),
        ({"AWS_ENDPOINT_URL": {"value": STORE}}, {"AWS_ENDPOINT_URL": "http://c"}, ""),
        ({"AWS_ENDPOINT_URL": {"valueFrom": {}}}, {}, ""),
        ({}, {}, ""),
    ],
)  # fmt: skip
def test_unreadable_output_names_the_endpoint_of_the_job(
    env: Any, here: dict[str, str], shown: str, on: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The variables of the pods do not apply on the machine of the user."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in here.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(typer.Exit):
        read_output("logs", on(Cluster(**env)), fail)
    printed = capsys.readouterr().err
    assert shown in printed
    assert ("AWS_ENDPOINT_URL" in printed) == bool(shown)
    assert "pw" not in printed


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        ({"phase": "Succeeded", **TIMES}, ["started", "ended"]),
        ({"phase": "Running", **TIMES}, ["started"]),
        ({"phase": "Failed", "completionTime": TIMES["completionTime"]}, ["ended"]),
        ({}, []),
    ],
)
def test_status_has_the_times_of_a_job(
    status: Any, lines: list[str], on: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    show_status(on(Cluster(status)), Format.TEXT)
    result = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    assert [name for name in ("started", "ended") if name in result] == lines
    if lines == ["started", "ended"]:
        assert result["ended"] == "2026-03-01T12:05:33Z (after 5m33s)"
