"""The operator exits with a message if its files are missing or invalid."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchinference_operator.main import main

PREFIX = "BATCHINFERENCE_OPERATOR_"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """Set the variables of valid files, and restore the root logger afterwards."""
    files = {"TOKEN_KEY_FILE": tmp_path / "key", "DEFAULTS_FILE": tmp_path / "defaults.yaml"}
    files["TOKEN_KEY_FILE"].write_text("a key of at least thirty-two bytes")
    files["DEFAULTS_FILE"].write_text("image: registry/pipeline:1\n")
    for name, path in files.items():
        monkeypatch.setenv(PREFIX + name, str(path))
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield files
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("variable", "content", "expected"),
    [
        ("DEFAULTS_FILE", "imagePullPolicy: Sometimes\n", ["imagePullPolicy", "Sometimes"]),
        ("TOKEN_KEY_FILE", None, ["/key"]),
    ],
)
def test_operator_with_bad_files_exits_and_names_the_problem(
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    variable: str,
    content: str | None,
    expected: list[str],
) -> None:
    path = files[variable]
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    log = capsys.readouterr().err
    assert [each for each in expected if each not in log] == []
    assert "Traceback" not in log
