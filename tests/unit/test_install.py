"""`tools/install` chooses a build of PyTorch, and a torchvision that fits it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents.pages import ROOT

UV = """#!/bin/bash
if [[ $1 == export ]]; then
    while [[ $1 != --output-file ]]; do shift; done
    printf "torch==2.13.0\ntorchvision==0.28.0\n" >"$2"
    if [[ " $* " == *" --prune=torch "* ]]; then echo "torchvision==0.28.0" >"$2"; fi
else
    echo "$1 $2" >>"$CALLS"
    printf 'Installed 2 packages\n - attrs==25.1\n + attrs==25.4\n ~ torch==2.13.0\n' >&2
fi
"""
PYTHON = """#!/bin/bash
[[ $2 == *urllib* ]] && exec test "$ANSWERS"
[[ $2 == "import torchvision" && $IMPORTS ]]
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no CUDA build")


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def install(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a fake uv, which writes its calls to a file, and a fake Python."""
    wheels = directory / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    uv, python = script(directory / "uv", UV), script(directory / "python", PYTHON)
    return subprocess.run(
        [ROOT / "tools/install", python, "--extra", "vision"],
        env={"PATH": os.environ["PATH"], "UV": str(uv), "CALLS": "calls", **environment},
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("imports", ["", "yes"], ids=["cuda-build", "cpu-build"])
def test_torchvision_that_cannot_be_imported_is_removed(tmp_path: Path, imports: str) -> None:
    """It would break transformers, which imports it."""
    ran = install(tmp_path, WHEELS="wheels", IMPORTS=imports)
    removed = ["pip uninstall"] if not imports else []
    assert (tmp_path / "calls").read_text().splitlines() == ["pip install", *removed]
    assert ("TORCH_INDEX" in ran.stderr) == bool(removed)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WHEELS": "wheels", "IMPORTS": "yes"}, ["build in wheels"]),
        ({"TORCH_INDEX": "https://index", "ANSWERS": "yes"}, ["CPU build of https://index", "GB"]),
        ({"TORCH_INDEX": "https://index"}, ["CUDA build", "https://index", "not answer", "GB"]),
    ],
)
def test_build_of_pytorch_is_named_before_its_download(
    tmp_path: Path, environment: dict[str, str], words: list[str]
) -> None:
    before, _, after = install(tmp_path, **environment).stderr.partition("Installed 2 packages\n")
    assert before.startswith("PyTorch 2.13.0: ")
    assert all(word in before for word in words)
    assert "attrs" not in after, "no packages are listed"
