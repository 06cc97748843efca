"""One Ray and one S3 server for all jobs of this folder, and the users' code that they name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchinference.pipeline.execution import cluster
from support.jobs.crash_points import Place, cloud_place, local_place, s3_place
from support.servers.clouds import served
from support.servers.s3 import S3Server, s3_server

FAKES = Path(__file__).parents[2] / "support" / "models" / "fake_vllm"
"""The folder of a fake package vllm."""
OWN_CODE = Path(__file__).parent / "own_code.py"
"""The module of a user: `own_code:NAME` in python steps."""


@pytest.fixture(scope="session")
def own_code() -> Path:
    """The file of the module, which jobs without Ray can import."""
    cluster.importable(str(OWN_CODE.parent))
    return OWN_CODE


@pytest.fixture(scope="session")
def one_ray() -> Iterator[None]:
    """Ray with three logical CPUs and two NPUs on any machine, so that plans are the same."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # 15 by default: its workers would wait for the tests of other processes
    os.environ.setdefault("RAY_worker_niceness", "0")
    for directory in (str(OWN_CODE.parent), str(FAKES)):
        cluster.importable(directory)
    ray.init(
        num_cpus=3,
        resources={"NPU": 2},
        include_dashboard=False,
        object_store_memory=300 << 20,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


@pytest.fixture
def ray(one_ray: None) -> Iterator[None]:
    """The session's Ray. No job may use it after its test."""
    yield
    for thread in threading.enumerate():
        if thread.name == "dataset":
            thread.join(60)
            assert not thread.is_alive(), "a job runs although it has failed"


@pytest.fixture(params=["posix", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where jobs without Ray read and write."""
    match request.param:
        case "posix":
            yield local_place(tmp_path)
        case "s3":
            yield s3_place(tmp_path, request.getfixturevalue("s3"))
        case scheme:
            files = tmp_path / "objects"
            with served({"gs": "google", "az": "azure"}[scheme], files) as cloud:
                yield cloud_place(tmp_path, scheme, cloud, files)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
