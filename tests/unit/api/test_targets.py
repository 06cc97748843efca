"""The name of what to observe: a path, or a job on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.api.cluster_error import ClusterError
from batchinference.api.targets import Target
from plugins.messages import Messages


@pytest.fixture(autouse=True)
def without_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


def test_name_that_is_no_path_and_no_cluster_is_both_named(messages: Messages) -> None:
    with messages.raises(ClusterError):
        Target("nosuch").output()


def test_name_of_a_job_in_a_namespace_is_no_path() -> None:
    with pytest.raises(ClusterError, match=r"^no cluster\b"):
        Target("nosuch", namespace="team").output()


def test_existing_directory_is_an_output(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert Target("out").output() == "out"


def test_path_that_cannot_be_examined_is_no_file() -> None:
    """So that the command names the problem when it reads the output."""
    path = f"./{'a' * 300}"
    assert Target(path).output() == str(Path(path))
    with pytest.raises(ClusterError, match="is no file or directory here"):
        Target("a" * 300).output()
