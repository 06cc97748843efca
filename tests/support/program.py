"""Runs the program `batchinference` in the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from unittest.mock import patch

from typer import testing
from typer.main import get_command
from typer.testing import Result

from batchinference.cli.main import app

Invoke = Callable[..., Result]
WriteJob = Callable[..., str]
_command = cache(get_command)
"""typer would build the commands from their signatures at each call, which takes 20 ms."""


def run_program(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """Run `batchinference` with these arguments. Return its exit code and output."""
    with patch.object(testing, "_get_command", _command):
        return testing.CliRunner().invoke(app, arguments, input=stdin)
