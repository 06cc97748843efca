"""Fixtures that run the program in this process and write its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import Result

from support.documents.minimal import Document
from support.program import Invoke, WriteJob, run_program


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary directory, which is the working directory of the program."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def invoke(directory: Path) -> Invoke:
    """Return a function that runs the program in `directory` and returns its result."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = run_program(*arguments, stdin=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def write_job(directory: Path) -> WriteJob:
    """Return a function that writes documents as one YAML stream to a file in `directory`.

    It returns the name of the file.
    """

    def write(*documents: Document, file: str = "job.yaml") -> str:
        (directory / file).write_text(yaml.safe_dump_all(documents))
        return file

    return write
