"""Packages that are missing or hidden by files of the user, and messages of libraries."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ray._private.authentication import authentication_token_setup as tokens
from ray.widgets import util

from batchinference import pipeline
from batchinference.api.kubernetes import CLUSTER_EXTRA
from batchinference.pipeline import errors
from batchinference.pipeline.errors import (
    FORMATS_EXTRA,
    BadInput,
    BadOutput,
    ModelLoad,
    missing_package,
    require_package,
)
from batchinference.pipeline.input.readers.kinds import READERS
from batchinference.pipeline.media import images
from batchinference.pipeline.runtimes.kinds import RUNTIMES, check_hidden
from batchinference.pipeline.runtimes.transformers.media_inputs import _resampled
from plugins.messages import Messages
from support.documents.pages import ROOT

EXTRAS = {name: value for name, value in vars(errors).items() if name.endswith("_EXTRA")}


def test_missing_package_error_has_the_install_command(messages: Messages) -> None:
    for failure in (BadInput, BadOutput, ModelLoad):
        with messages.raises(failure):
            require_package("the format 'x'", "no_such_module", FORMATS_EXTRA, failure)


def test_check_does_not_import_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    require_package("a joke", "antigravity", "antigravity", BadInput)
    assert "antigravity" not in sys.modules


def test_extras_match_pyproject() -> None:
    project = tomllib.loads((ROOT / "jobs/pyproject.toml").read_text())["project"]
    extras = {f"./jobs[{extra}]" for extra in project["optional-dependencies"]}
    assert {*EXTRAS.values(), CLUSTER_EXTRA} == extras


def test_install_commands_are_in_few_modules() -> None:
    files = (ROOT / "jobs/src").rglob("*.py")
    names = {file.name for file in files if re.search(r"pip install .*'", file.read_text())}
    assert names == {"errors.py", "doctor.py"}


def test_runtimes_and_formats_name_their_packages() -> None:
    for entry in RUNTIMES.values():
        assert entry.library.isidentifier()
        assert entry.package in {*EXTRAS.values(), errors.VLLM_PACKAGE}
    assert all(name.isidentifier() for _, *names in READERS.values() for name in names)


def test_heic_names_its_extra() -> None:
    others = tuple(name for name in images.FORMATS if name != "HEIF")
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40
    with pytest.raises(ValueError, match=r"pillow-heif: pip install '\./jobs\[heic\]'"):
        images.open_image(content, formats=others)


def test_resampling_needs_av(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "batchinference.pipeline.media.audio", None)
    with pytest.raises(ModelLoad) as caught:
        _resampled(np.zeros(8, np.float32), 8000, 16000)
    what = "audio of 8000 Hz for a model that expects 16000 Hz"
    assert caught.value.message == missing_package(what, "av", FORMATS_EXTRA)


@pytest.mark.parametrize("file", ["transformers.py", "torch/__init__.py"])
def test_file_that_hides_a_package_of_the_runtime_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('a file of the user')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelLoad, match=f"'{tmp_path / file}' hides the package"):
        check_hidden("transformers")
    if file == "transformers.py":
        check_hidden("aiohttp")


IN_A_NOTEBOOK = """
import batchinference.pipeline
import warnings
from tqdm import TqdmWarning
from tqdm.notebook import WARN_NOIPYW

warnings.warn(WARN_NOIPYW, TqdmWarning)
"""


@pytest.mark.parametrize(
    "speak",
    [lambda: util._has_missing(("no_such_package", "1")), tokens._warn_token_auth_enabled],
    ids=["widgets", "token"],
)
def test_message_of_a_library_is_hidden(
    monkeypatch: pytest.MonkeyPatch, speak: Callable[[], None]
) -> None:
    assert all(
        "is_helpful" in names_of_filters(logging.getLogger(name)) for name in pipeline.UNHELPFUL
    )
    assert said_by(monkeypatch, speak) == []
    for name in pipeline.UNHELPFUL:
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
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
