"""`batchinference search`: invalid arguments are refused before any data is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Invoke = Callable[..., Result]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give exactly one of --text, --image and --row, got none"),
        (["--text", "a", "--row", "1"], "got --text and --row"),
        (["--text", "a", "--image", "b", "--row", "1"], "got --text and --image and --row"),
        (["--row", "1", "-k", "1001"], "-k: at most 1000 rows, got 1001"),
        (["--row", "1", "--where", "n >"], "--where: not an expression: invalid syntax at its end"),
        (["--row", "1", "--where", "exec('n')"], "--where: unknown function 'exec'"),
        (["--image", "https://a/b.png"], "('https://a/b.png'), because a search reads only files"),
        (["--image", "ftp://a/b.png"], "'ftp://a/b.png': the scheme 'ftp://' is not supported"),
        (["--row", "1"], "'out' does not exist"),
    ],
    ids=[
        "no query",
        "two queries",
        "three queries",
        "k",
        "where",
        "function",
        "web",
        "image",
        "output",
    ],
)
def test_search_arguments_are_refused_in_one_line(
    invoke: Invoke, arguments: list[str], message: str
) -> None:
    result = invoke("search", "out", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("search: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("count", ["0", "-1", "x", "1001"])
def test_search_k_is_refused(invoke: Invoke, count: str) -> None:
    result = invoke("search", "out", "--row", "1", "-k", count)
    assert result.exit_code == 2
    assert "-k" in result.stderr


def test_search_output_of_unknown_scheme_is_refused(invoke: Invoke) -> None:
    result = invoke("search", "ftp://out", "--row", "1")
    assert result.exit_code == 2
    assert "'ftp://out': the scheme 'ftp://' is not supported" in result.stderr


def test_search_directory_without_an_output_is_refused(invoke: Invoke, directory: Path) -> None:
    (directory / "out").mkdir()
    result = invoke("search", "out", "--text", "a cat")
    assert result.exit_code == 2
    assert result.stderr.startswith("search: 'out' is not the output of a BatchInference")
