"""Messages of libraries that do not help users are hidden, and no others."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable

import pytest
from ray._private.authentication import authentication_token_setup as tokens
from ray.widgets import util

from batchinference import pipeline
from batchinference.pipeline.ray_compat import SQLDatasource

IN_A_NOTEBOOK = """
import batchinference.pipeline
import warnings
from tqdm import TqdmWarning
from tqdm.notebook import WARN_NOIPYW

warnings.warn(WARN_NOIPYW, TqdmWarning)
"""


def read_rows_of_a_table() -> None:
    SQLDatasource("SELECT 1", lambda: sqlite3.connect(":memory:"), "unicode").get_read_tasks(2)


@pytest.mark.parametrize(
    "speak",
    [
        lambda: util._has_missing(("no_such_package", "1")),
        tokens._warn_token_auth_enabled,
        read_rows_of_a_table,
    ],
    ids=["widgets", "token", "table"],
)
def test_message_of_a_library_is_hidden(
    monkeypatch: pytest.MonkeyPatch, speak: Callable[[], None]
) -> None:
    assert all(
        "is_helpful" in names_of_filters(logging.getLogger(name)) for name in pipeline.UNHELPFUL
    )
    assert said_by(monkeypatch, speak) == []
    monkeypatch.setattr(pipeline, "UNHELPFUL", {})
    assert len(said_by(monkeypatch, speak)) == 1, "Ray says something else"


def names_of_filters(logger: logging.Logger) -> list[str]:
    """Return the names: another test reloads the module of the filter."""
    return [getattr(one, "__name__", "") for one in logger.filters]


def said_by(monkeypatch: pytest.MonkeyPatch, speak: Callable[[], None]) -> list[str]:
    """Return the messages that the loggers of UNHELPFUL pass on."""
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(logging.Logger, "isEnabledFor", lambda *_: True)
        patched.setattr(logging.Logger, "callHandlers", lambda _, record: said.append(record.msg))
        speak()
    return said


def test_warning_of_ray_without_a_token_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = said_by(monkeypatch, tokens._warn_token_auth_disabled)
    assert message.startswith("Token authentication is disabled")


def test_warning_about_widgets_of_notebooks_is_hidden() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NOTEBOOK], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
