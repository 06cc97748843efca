"""One Ray for all jobs of this folder, one S3 server, and the code of their user."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchinference.pipeline import engine
from support.clouds import served
from support.crashes import Place, cloud_place, local_place, s3_place
from support.documentation import code_of_pages
from support.examples import directories_of_modules
from support.s3 import S3Server, s3_server

FAKES = Path(__file__).parents[2] / "support" / "fake_vllm"
"""Where a stand-in for the package vllm is."""
OWN_CODE = Path(__file__).parent / "own_code.py"
"""The module of a user: `own_code:NAME` in python steps."""


@pytest.fixture(scope="session")
def own_code() -> Path:
    """The module's file, for jobs that run in a process of their own."""
    return OWN_CODE


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the module `steps` of the documentation lies."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "steps.py").write_text(code_of_pages())
    return folder


@pytest.fixture(scope="session")
def one_ray(pages: Path) -> Iterator[None]:
    """Ray with three logical CPUs and two NPUs, whatever the machine has, so that plans run the
    same."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for directory in (*directories_of_modules(), str(OWN_CODE.parent), str(FAKES), str(pages)):
        engine.importable(directory)
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
    """The Ray that is up, and that no job goes on with after its test."""
    yield
    for thread in threading.enumerate():
        if thread.name == "dataset":
            thread.join(60)
            assert not thread.is_alive(), "a job goes on although it has failed"


@pytest.fixture(params=["posix", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where played jobs read and write."""
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
