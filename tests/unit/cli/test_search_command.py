"""`batchinference search`: what is refused before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give exactly one of --text, --image and --row, got none"),
        (["--text", "a", "--row", "1"], "got --text and --row"),
        (["--text", "a", "--image", "b", "--row", "1"], "got --text and --image and --row"),
        (["--row", "1", "-k", "1001"], "-k: at most 1000 rows, got 1001"),
        (["--row", "1", "--where", "n >"], "--where: not an expression: invalid syntax at its end"),
        (["--row", "1", "--where", "exec('n')"], "--where: unknown function 'exec'"),
        (["--image", "ftp://a/b.png"], "'ftp://a/b.png': the scheme 'ftp://' is not supported"),
        (["--row", "1"], "'out' does not exist"),
    ],
    ids=["no query", "two queries", "three queries", "k", "where", "function", "image", "output"],
)
def test_invalid_arguments_exit_with_2_and_one_line(
    invoke: Invoke, arguments: list[str], words: str
) -> None:
    result = invoke("search", "out", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("search: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("count", ["0", "-1", "x", "1001"])
def test_k_is_a_number_of_rows(invoke: Invoke, count: str) -> None:
    result = invoke("search", "out", "--row", "1", "-k", count)
    assert result.exit_code == 2
    assert "-k" in result.stderr


def test_an_address_of_an_unknown_kind_is_refused(invoke: Invoke) -> None:
    result = invoke("search", "ftp://out", "--row", "1")
    assert result.exit_code == 2
    assert "'ftp://out': the scheme 'ftp://' is not supported" in result.stderr


def test_a_directory_that_no_job_has_written_is_refused(invoke: Invoke, directory: Path) -> None:
    (directory / "out").mkdir()
    result = invoke("search", "out", "--text", "a cat")
    assert result.exit_code == 2
    assert result.stderr.startswith("search: 'out' is no output of a BatchInference")
