"""Each line of the log says when, how grave, what, and about which job."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import kopf
import pytest

from batchinference_operator.runtime.logs import about, configure
from support.operator.harness import Harness
from support.operator.objects import SETTINGS
from support.operator.virtual_time import in_virtual_time

OF_OPERATOR = logging.getLogger("batchinference.operator")


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """The root logger, put back afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    with about("team", "job", 2):
        OF_OPERATOR.info("created %s", "RayJob")
    (line,) = lines(capsys)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "batchinference.operator",
        "message": "created RayJob",
        "job": "team/job",
        "attempt": 2,
    }


def test_a_line_about_no_job_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    with about("team", "job", 2):
        pass
    OF_OPERATOR.warning("by itself")
    (line,) = lines(capsys)
    assert {"job", "attempt"}.isdisjoint(line)


def test_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure("plain", "INFO")
    with about("team", "job", 2):
        OF_OPERATOR.warning("refused")
    line = capsys.readouterr().err
    assert line.endswith("Z WARNING [team/job attempt 2] refused\n")


def test_an_error_is_one_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    try:
        raise ValueError("odd")
    except ValueError:
        OF_OPERATOR.exception("trying again")
    (line,) = lines(capsys)
    assert "ValueError: odd" in line["exc_info"]


def of_kopf(kind: str) -> dict[str, Any]:
    """What kopf hangs on a line."""
    ref = {"kind": kind, "namespace": "team", "name": "job-1", "uid": "u"}
    return {"k8s_ref": ref, "k8s_skip": True, "settings": kopf.OperatorSettings()}


def test_lines_of_kopf_are_of_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    logger = logging.getLogger("kopf.objects")
    logger.info("an event")
    logger.warning("a handler failed", extra=of_kopf("RayJob"))
    logger.warning("a handler failed", extra=of_kopf("BatchInference"))
    below, own = lines(capsys)
    assert below["object"] == "RayJob team/job-1"
    assert own["job"] == "team/job-1"
    for line in (below, own):
        assert {"time", "level", "message"} <= line.keys()
        assert {"k8s_ref", "k8s_skip", "settings"}.isdisjoint(line)


def test_a_watch_that_kopf_leaves_unclosed_at_its_end_is_no_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("json", "INFO")
    logger = logging.getLogger("asyncio")
    words = "an error occurred during closing of asynchronous generator"
    for name in ("infinite_watch", "another"):
        logger.error(f"{words} <async_generator object {name} at 0x7fcb>\nasyncgen: ...")
    (line,) = lines(capsys)
    assert "another" in line["message"]


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "WARNING")
    OF_OPERATOR.info("created")
    assert lines(capsys) == []


def test_every_line_of_a_job_names_it_and_no_line_its_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("json", "DEBUG")
    harness = Harness()

    @in_virtual_time
    async def run() -> None:
        async with harness.recorded_operator():
            await harness.finish_job()

    run()
    text = capsys.readouterr().err
    found = [json.loads(line) for line in text.splitlines()]
    ours = [line for line in found if line["logger"] == "batchinference.operator"]
    assert len(ours) > 5
    assert {line["job"] for line in ours} == {"team/job"}
    assert {line.get("attempt") for line in ours} == {None, 1}
    uid = harness.cluster.objects["BatchInference", "job"]["metadata"]["uid"]
    assert SETTINGS.token(uid) not in text
