"""Missing packages: one error message everywhere, with the command that installs them."""

from __future__ import annotations

import re
import sys
import tomllib

import numpy as np
import pytest

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
from batchinference.pipeline.input.readers import READERS
from batchinference.pipeline.media import images
from batchinference.pipeline.runtimes import RUNTIMES
from batchinference.pipeline.runtimes.transformers.media_inputs import _resampled
from plugins.messages import Messages
from support.documents.pages import ROOT

EXTRAS = {name: value for name, value in vars(errors).items() if name.endswith("_EXTRA")}


def test_missing_package_error_has_the_install_command(messages: Messages) -> None:
    for failure in (BadInput, BadOutput, ModelLoad):
        with pytest.raises(failure) as caught:
            require_package("the format 'x'", "no_such_module", FORMATS_EXTRA, failure)
        messages.check(caught.value.message)


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


def test_heic_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(name for name in images.FORMATS if name != "HEIF")
    monkeypatch.setattr(images, "FORMATS", others)
    with pytest.raises(ValueError, match=r"pillow-heif: pip install '\./jobs\[heic\]'"):
        images.open_image(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40)


def test_resampling_needs_av(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "batchinference.pipeline.media.audio", None)
    with pytest.raises(ModelLoad) as caught:
        _resampled(np.zeros(8, np.float32), 8000, 16000)
    what = "audio of 8000 Hz for a model that expects 16000 Hz"
    assert caught.value.message == missing_package(what, "av", FORMATS_EXTRA)
