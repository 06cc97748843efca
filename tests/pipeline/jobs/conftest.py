"""Fixtures for all jobs of this folder: one Ray, places, and user code for steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from batchinference.pipeline.steps.import_path import add_import_path
from support.jobs.crash_points import Site, cloud_site, local_site, s3_site
from support.servers.clouds import served

FAKES = Path(__file__).parents[2] / "support" / "models" / "fake_vllm"
"""The directory of a fake `vllm` package."""
OWN_CODE = Path(__file__).parent / "own_code.py"
"""The user module that python steps name as `own_code:NAME`."""


@pytest.fixture(scope="session")
def own_code() -> Path:
    """Make the user module importable for jobs without Ray, and return its file."""
    add_import_path(str(OWN_CODE.parent))
    return OWN_CODE


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """Start Ray with three logical CPUs, a GPU and two NPUs: plans are the same on any machine."""
    import ray
    from ray._private.node import Node

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # the default niceness is 15: workers would wait for the tests of other processes
    os.environ.setdefault("RAY_worker_niceness", "0")
    for directory in (str(OWN_CODE.parent), str(FAKES)):
        add_import_path(directory)
    with patch.object(Node, "start_log_monitor"):  # it polls the logs, which nobody reads
        ray.init(
            num_cpus=3,
            num_gpus=1,
            resources={"NPU": 2},
            include_dashboard=False,
            object_store_memory=300 << 20,
            log_to_driver=False,
        )
    yield
    ray.shutdown()


@pytest.fixture
def ray(one_ray: None) -> Iterator[None]:
    """Provide the session's Ray. Fails if a job still uses it after its test."""
    yield
    for thread in threading.enumerate():
        if thread.name == "dataset":
            thread.join(60)
            assert not thread.is_alive(), "a job runs although it has failed"


@pytest.fixture(params=["posix", "s3"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Yield the storage where jobs without Ray read and write."""
    match request.param:
        case "posix":
            yield local_site(tmp_path)
        case "s3":
            yield s3_site(tmp_path, request.getfixturevalue("s3"))
        case scheme:
            files = tmp_path / "objects"
            with served({"gs": "google", "az": "azure"}[scheme], files) as cloud:
                yield cloud_site(tmp_path, scheme, cloud, files)
