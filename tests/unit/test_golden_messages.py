"""Golden files of messages have the messages of each test that checks them, and no others.

Tests of the long tier run rarely, so a missing message would be seen late."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parents[1]
Test = tuple[str, str]
"""The module and the name of a test."""


def checked_messages(directory: Path) -> Iterator[Test]:
    for path in sorted(directory.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                arguments = node.args.args + node.args.kwonlyargs
                if any(argument.arg == "messages" for argument in arguments):
                    yield path.stem, node.name


def golden_messages(directory: Path) -> set[Test]:
    file = directory / "messages.yaml"
    modules = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {(module, test) for module, tests in modules.items() for test in tests}


@pytest.mark.parametrize(
    "directory",
    sorted({path.parent for path in TESTS.rglob("test_*.py")}),
    ids=lambda directory: str(directory.relative_to(TESTS)),
)
def test_golden_file_has_the_messages_of_its_tests(directory: Path) -> None:
    assert set(checked_messages(directory)) == golden_messages(directory)
