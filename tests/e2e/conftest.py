"""The product on a real cluster, a namespace for the tests, and what they compare with."""

from __future__ import annotations

import copy
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployment import PIPELINE_IMAGE, ROOT, installed, require_cluster
from support.documents import document, python_step
from support.kubectl import Kubectl, run
from support.objectstore import ObjectStore

Job = dict[str, Any]
SLOW_ROWS = 2000
SLOW_CODE = """
import time
from batchinference.pipeline.storage import Address

class Slow:
    def __call__(self, batch, until=None):
        time.sleep(0.4)
        while until and "line 1999" in batch["text"] and not Address(until).exists():
            time.sleep(1)
        return batch
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-transcript", action="store_true", help="Write docs/transcript.md anew."
    )


@pytest.fixture(scope="session")
def operator() -> Iterator[Kubectl]:
    """The installed operator: kubectl in its namespace."""
    require_cluster()
    with installed() as kubectl:
        yield kubectl


@pytest.fixture(scope="session")
def kubectl(operator: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a namespace of the tests' own, under the strictest Pod Security level."""
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    run(["kubectl", "create", "namespace", name])
    level = "pod-security.kubernetes.io/enforce=restricted"
    run(["kubectl", "label", "namespace", name, level])
    yield Kubectl(name)
    run(["kubectl", "delete", "namespace", name, "--timeout=120s"], timeout=130)


@pytest.fixture(scope="session")
def store(kubectl: Kubectl) -> ObjectStore:
    store = ObjectStore(kubectl)
    store.start(PIPELINE_IMAGE)
    return store


@pytest.fixture
def delete_later(kubectl: Kubectl) -> Iterator[Callable[[str], None]]:
    """Has a job deleted after the test, whatever comes of it."""
    names: list[str] = []
    yield names.append
    for name in names:
        kubectl("delete", "batchinference", name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def create(kubectl: Kubectl, delete_later: Callable[[str], None]) -> Callable[[Job], str]:
    """Applies a job under a name of its own; returns the name."""

    def apply(job: Job) -> str:
        job = copy.deepcopy(job)
        job["metadata"]["name"] += f"-{uuid.uuid4().hex[:4]}"
        name: str = job["metadata"]["name"]
        delete_later(name)
        kubectl.apply(job)
        return name

    return apply


@pytest.fixture(scope="session")
def example(store: ObjectStore) -> Callable[[str], Job]:
    """An example of the repository, its input uploaded and its paths moved to the object store:
    nothing else of it is changed."""
    uploaded: set[str] = set()

    def load(name: str) -> Job:
        directory = ROOT / "examples" / name
        if name not in uploaded:
            prepare(directory)
            for part in ("data", "model"):
                if (directory / part).exists():
                    store.upload(directory / part, f"{name}/{part}")
            uploaded.add(name)
        text = (directory / "job.yaml").read_text()
        for part in ("data", "model", "out"):
            key = f"{name}/{part}" if part != "out" else f"{name}/out-{uuid.uuid4().hex[:6]}"
            text = text.replace(f"./{part}", store.uri(key))
        job: Job = yaml.safe_load(text)
        return job

    return load


def prepare(directory: Path) -> None:
    """Run the example's own prepare.py."""
    subprocess.run([sys.executable, directory / "prepare.py"], check=True, timeout=120)


@pytest.fixture(scope="session")
def run_locally() -> Callable[[str], Path]:
    """Runs an example by `batchinference run`, once; returns its output directory."""
    done: dict[str, Path] = {}

    def run_here(name: str) -> Path:
        directory = ROOT / "examples" / name
        if name not in done:
            program = Path(sys.executable).parent / "batchinference"
            run([str(program), "run", str(directory / "job.yaml")], timeout=280)
            done[name] = directory / "out"
        return done[name]

    return run_here


@pytest.fixture(scope="session")
def slow_job(
    kubectl: Kubectl, store: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Job]:
    """A job that takes half a minute and next to no CPU; it leaves every tenth row out. With
    `until` it does not end before there is such a file."""
    directory = tmp_path_factory.mktemp("slow")
    (directory / "lines.txt").write_text("".join(f"line {n}\n" for n in range(SLOW_ROWS)))
    store.upload(directory, "slow/in")
    metadata = {"name": "slow-code"}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
         "data": {"slow.py": SLOW_CODE}}
    )  # fmt: skip
    volume = {"name": "code", "mountPath": "/code", "configMap": metadata}
    cluster = {"volumes": [volume], "env": [{"name": "PYTHONPATH", "value": "/code"}]}

    def make(name: str, until: str | None = None) -> Job:
        slow = python_step("slow", "slow:Slow", batchSize=25)
        if until:
            slow["python"]["callArgs"] = {"until": until}
        return document(
            name,
            read={"format": "text", "paths": [store.uri("slow/in")]},
            steps=[
                slow,
                {"name": "most", "filter": "not endswith(text, '0')"},
            ],
            write={"format": "parquet", "path": store.uri(f"slow/{uuid.uuid4().hex[:6]}")},
            cluster=copy.deepcopy(cluster),
        )

    return make
