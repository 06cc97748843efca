"""`tools/install` leaves out a torchvision that does not fit to the CPU build of PyTorch."""

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
fi
"""
PYTHON = """#!/bin/bash
[[ $2 == "import torchvision" && $IMPORTS ]]
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no CUDA build")


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("imports", ["", "yes"], ids=["cuda-build", "cpu-build"])
def test_torchvision_that_cannot_be_imported_is_removed(tmp_path: Path, imports: str) -> None:
    """It would break transformers, which imports it."""
    wheels, calls = tmp_path / "wheels", tmp_path / "calls"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    uv, python = script(tmp_path / "uv", UV), script(tmp_path / "python", PYTHON)
    environment = {"UV": str(uv), "WHEELS": str(wheels), "CALLS": str(calls), "IMPORTS": imports}
    ran = subprocess.run(
        [ROOT / "tools/install", python, "--extra", "vision"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    removed = ["pip uninstall"] if not imports else []
    assert calls.read_text().splitlines() == ["pip install", *removed]
    assert ("TORCH_INDEX" in ran.stderr) == bool(removed)
