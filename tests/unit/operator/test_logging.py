"""Log lines contain the time, the level, the message and the job."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import kopf
import pytest

from batchinference_operator.observability.logging import configure, log_context
from support.operator.harness import Harness
from support.operator.virtual_time import in_virtual_time

LOGGER = logging.getLogger("batchinference.operator")


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Restore the root logger afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_line_has_job_and_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    with log_context("team", "job", 2):
        LOGGER.info("created %s", "RayJob")
    LOGGER.warning("by itself")
    line, other = lines(capsys)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "batchinference.operator",
        "message": "created RayJob",
        "job": "team/job",
        "attempt": 2,
    }
    assert {"job", "attempt"}.isdisjoint(other)


def test_plain_line_has_job_and_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    configure("plain", "INFO")
    with log_context("team", "job", 2):
        LOGGER.warning("refused")
    line = capsys.readouterr().err
    assert line.endswith("Z WARNING [team/job attempt 2] refused\n")


def test_plain_line_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure("plain", "INFO")
    logging.getLogger("any").info("refused: %s", "\x1b[2J\x9b31m\u202ehidden\r")
    assert capsys.readouterr().err.endswith("INFO    refused: [2J31mhidden\n")


def test_lines_below_the_level_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "WARNING")
    LOGGER.info("created")
    assert lines(capsys) == []


def test_exception_is_one_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    try:
        raise ValueError("odd")
    except ValueError:
        LOGGER.exception("trying again")
    (line,) = lines(capsys)
    assert "ValueError: odd" in line["exc_info"]


def kopf_extra(kind: str) -> dict[str, Any]:
    """Return the extra fields of kopf's log records."""
    ref = {"kind": kind, "namespace": "team", "name": "job-1", "uid": "u"}
    return {"k8s_ref": ref, "k8s_skip": True, "settings": kopf.OperatorSettings()}


def test_lines_of_kopf_have_the_same_format(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    logger = logging.getLogger("kopf.objects")
    logger.info("an event")
    logger.warning("a handler failed", extra=kopf_extra("RayJob"))
    logger.warning("a handler failed", extra=kopf_extra("BatchInference"))
    below, own = lines(capsys)
    assert below["object"] == "RayJob team/job-1"
    assert own["job"] == "team/job-1"
    for line in (below, own):
        assert {"time", "level", "message"} <= line.keys()
        assert {"k8s_ref", "k8s_skip", "settings"}.isdisjoint(line)


def test_unclosed_watch_of_kopf_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "INFO")
    logger = logging.getLogger("asyncio")
    message = "an error occurred during closing of asynchronous generator"
    for name in ("infinite_watch", "another"):
        logger.error(f"{message} <async_generator object {name} at 0x7fcb>\nasyncgen: ...")
    (line,) = lines(capsys)
    assert "another" in line["message"]


def test_lines_name_their_job_and_never_its_token(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("json", "DEBUG")

    @in_virtual_time
    async def run() -> None:
        async with harness.recorded_operator():
            await harness.finish_job()

    run()
    text = capsys.readouterr().err
    documents = [json.loads(line) for line in text.splitlines()]
    ours = [line for line in documents if line["logger"] == "batchinference.operator"]
    assert len(ours) > 5
    assert {line["job"] for line in ours} == {"team/job"}
    assert {line.get("attempt") for line in ours} == {None, 1}
    assert harness.token() not in text
