"""The fixture `messages`: compares messages to users with `messages.yaml` next to the tests.

One file holds all messages of a directory, by module, test and case, so that they can be reviewed
together. `--write-golden` writes the messages of the tests that run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Golden = dict[str, dict[str, dict[str, Any]]]
"""Messages, or lists of them, by module, test and case."""
HEADER = "# Written by `python -m pytest DIRECTORY --write-golden`; do not edit.\n"
ONLY_CASE = "-"
_written = pytest.StashKey[dict[Path, Golden]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="Write the golden files of the tests that run, to review them with git diff.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_written] = {}
    if config.getoption("--write-golden") and hasattr(config, "workerinput"):
        raise pytest.UsageError("--write-golden: not with -n, whose processes write the same files")


def pytest_sessionfinish(session: pytest.Session) -> None:
    for file, tests in session.config.stash[_written].items():
        _write(file, tests)


class Messages:
    """The messages of one test."""

    def __init__(self, expected: list[str] | None, hidden: dict[str, str]) -> None:
        """`expected` is None while golden files are written. `hidden` maps patterns to texts."""
        self._expected = expected
        self._hidden = hidden
        self.seen: list[str] = []

    def check(self, *messages: object) -> None:
        """Expect each of these messages, or of lists of messages, in the golden file. Equal ones
        count once."""
        for message in messages:
            if isinstance(message, list | tuple):
                self.check(*message)
                continue
            text = self._without_hidden(message)
            assert self._expected is None or text in self._expected, "see CONTRIBUTING.md, Tests"
            if text not in self.seen:
                self.seen.append(text)

    def check_in_order(self, messages: Sequence[object]) -> None:
        """Expect exactly these messages in the golden file, equal ones too, in this order."""
        self.seen = [self._without_hidden(message) for message in messages]
        assert self._expected in (None, self.seen), "see CONTRIBUTING.md, Tests"

    def _without_hidden(self, message: object) -> str:
        text = str(message).rstrip("\n")
        for pattern, replacement in self._hidden.items():
            text = re.sub(pattern, replacement, text)
        return text

    @contextmanager
    def raises(self, *errors: type[BaseException]) -> Iterator[pytest.ExceptionInfo[Any]]:
        """Expect one of these errors, and its message in the golden file."""
        with pytest.raises(errors) as caught:
            yield caught
        self.check(caught.value)


@pytest.fixture
def messages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Messages]:
    """Return what compares messages of this test with `messages.yaml`."""
    node = request.node
    test = getattr(node, "originalname", None) or node.name
    case = node.callspec.id if hasattr(node, "callspec") else ONLY_CASE
    file = node.path.parent / "messages.yaml"
    writes = request.config.getoption("--write-golden")
    known = _read(file).get(node.path.stem, {}).get(test, {}).get(case, [])
    result = Messages(
        None if writes else known if isinstance(known, list) else [known],
        {
            rf"{re.escape(str(tmp_path_factory.getbasetemp()))}/[^/\s:'\"]+": "TMP",
            re.escape(str(node.config.rootpath)): "ROOT",
            r"0x[0-9a-f]{8,}": "0xADDRESS",
            r"\b(127\.0\.0\.1|localhost|192\.0\.2\.2)(:|', )\d+": r"HOST\2PORT",
            r"\b[0-9a-f]{64}\b": "SHA256",
            r"\bvllm\.py:\d+": "vllm.py:LINE",
            r"\bcrashes-[a-z0-9-]+": "BUCKET",
        },
    )
    yield result
    if writes and result.seen:
        written = request.config.stash[_written].setdefault(file, {})
        cases = written.setdefault(node.path.stem, {}).setdefault(test, {})
        cases[case] = result.seen[0] if len(result.seen) == 1 else result.seen


@cache
def _read(file: Path) -> Golden:
    return yaml.safe_load(file.read_text(encoding="utf-8")) or {} if file.exists() else {}


def _write(file: Path, tests: Golden) -> None:
    """Replace all cases of each test that ran."""
    golden = {
        module: {**_read(file).get(module, {}), **tests.get(module, {})}
        for module in sorted({*_read(file), *tests})
    }
    text = yaml.dump(golden, Dumper=_Dumper, width=10_000, allow_unicode=True)
    file.write_text(HEADER + text, encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """Writes each message on one line, with few escaped quotes, and long output as a block."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text:
        style = "|"
    elif "'" in text and '"' not in text and "\\" not in text:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text_node)
