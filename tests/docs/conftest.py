"""Fixtures of all tests of the documentation.

They run without Ray, and with pytest-xdist on one worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before plugins/xdist_groups.py
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("docs"))


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder to which paths of all pages are relative. A job has its own output path."""
    from support.documents.page_files import write_files  # imports PyTorch, ONNX and Lance

    folder = tmp_path_factory.mktemp("pages")
    write_files(folder)
    return folder


@pytest.fixture
def steps(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the pages' modules importable. Examples have modules of the same names."""
    monkeypatch.syspath_prepend(directory)
    names = ("steps", "colours")
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)
