"""The pre-commit hook for repositories with job files: which files it checks, and how."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.documents.minimal import document
from support.documents.pages import ROOT, blocks

HOOKS = ROOT / ".pre-commit-hooks.yaml"
BIN = Path(sys.executable).parent
JOB = yaml.safe_dump(document("mine"))


@pytest.fixture
def hook() -> dict[str, Any]:
    (result,) = yaml.safe_load(HOOKS.read_text())
    return dict(result)


@pytest.mark.parametrize(
    ("path", "checked"),
    [
        ("job.yaml", True),
        ("examples/text-embeddings/job.yaml", True),
        ("nightly-job.yml", True),
        ("a/embed.job.yaml", True),
        ("jobs/embed.yaml", True),
        ("team/jobs/2026/embed.yml", True),
        ("jobs/kustomization.yaml", False),
        ("cronjob.yaml", False),
        ("jobs.yaml", False),
        ("jobs/README.md", False),
        ("values.yaml", False),
        ("job.yaml.j2", False),
    ],
)
def test_hook_checks_job_files(hook: dict[str, Any], path: str, checked: bool) -> None:
    match = re.search(hook["files"], path) and not re.search(hook["exclude"], path)
    assert bool(match) is checked


def git(directory: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(
        ["git", *who, *arguments], cwd=directory, check=True, capture_output=True, timeout=60
    )


def repository(directory: Path, files: dict[str, str]) -> Path:
    """Create a repository with these files and one commit."""
    directory.mkdir()
    git(directory, "init", "--quiet", "--initial-branch", "main")
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", "files", "--no-verify")
    return directory


def checked(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run all hooks on all files of a repository."""
    variables = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(directory.parent / "cache"),
    }
    return subprocess.run(
        [BIN / "pre-commit", "run", "--all-files", "--verbose"],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_pre_commit_runs_the_hook(tmp_path: Path) -> None:
    """With the configuration of the page. Its repository is a copy on this machine."""
    hooks = repository(tmp_path / "hooks", {HOOKS.name: HOOKS.read_text()})
    (text,) = [text for text in blocks("docs/cli.md", "yaml") if "repos:" in text]
    config = yaml.safe_load(text)
    config["repos"][0] |= {"repo": str(hooks), "rev": "main"}
    files = {
        ".pre-commit-config.yaml": yaml.safe_dump(config),
        "jobs/embed.yaml": JOB,
        "values.yaml": "no: job",
    }
    mine = repository(tmp_path / "mine", files)
    done = checked(mine)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jobs/embed.yaml: mine is valid" in done.stdout
    (mine / "jobs/embed.yaml").write_text(JOB.replace("format: text", "format: texts"))
    done = checked(mine)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "jobs/embed.yaml: spec.read.format: 'texts' is unknown" in done.stdout
