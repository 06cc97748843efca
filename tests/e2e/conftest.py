"""The product on a real cluster. All workers share one operator and one object store; each has a
namespace of its own."""

from __future__ import annotations

import copy
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from e2e.jobs import CODE, GATED, LONG, PAUSED, SLOT, Example
from support.cluster.deployment import (
    NAMESPACE,
    PIPELINE_IMAGE,
    install,
    require_cluster,
    uninstall,
)
from support.cluster.kubectl import Kubectl, run
from support.cluster.object_store import ObjectStore
from support.cluster.shared import shared
from support.cluster.state import state
from support.cluster.statuses import WatchingKubectl, watching
from support.documents.minimal import document, python_step
from support.timeouts import scaled

Job = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-transcript", action="store_true", help="Record the transcripts.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests with several Ray clusters first. Exclude fixtures from timeouts: the first test
    on a worker waits for images to be pulled."""
    items.sort(
        key=lambda item: not item.path.stem.endswith(("transcript", "upgrade", "suspension"))
    )
    for item in items:
        timeout = item.get_closest_marker("timeout")
        seconds = timeout.args[0] if timeout else 500
        item.add_marker(pytest.mark.timeout(scaled(seconds), func_only=True), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the cluster to the report of a failure."""
    report = yield
    if report.failed and (kubectl := getattr(item, "funcargs", {}).get("kubectl")):
        report.sections.append(("cluster", state(kubectl, Kubectl(NAMESPACE))))
    return report


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Install the operator, and yield the object store. All workers share both."""
    require_cluster()
    base = tmp_path_factory.getbasetemp()
    directory = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with shared(directory / "e2e", _start, _stop) as namespace:
        yield ObjectStore(Kubectl(namespace))


def _start() -> str:
    namespace = f"e2e-store-{uuid.uuid4().hex[:6]}"
    run(["kubectl", "create", "namespace", namespace])
    install({})
    ObjectStore(Kubectl(namespace)).start(PIPELINE_IMAGE)
    return namespace


def _stop(namespace: str) -> None:
    run(["kubectl", "delete", "namespace", namespace, "--wait=false"])
    uninstall()


@pytest.fixture(scope="session")
def operator(installation: ObjectStore) -> Kubectl:
    """Return kubectl in the operator's namespace."""
    return Kubectl(NAMESPACE)


@pytest.fixture(scope="session")
def kubectl(installation: ObjectStore) -> Iterator[WatchingKubectl]:
    """Yield kubectl in the worker's namespace, which has the restricted Pod Security level."""
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    run(["kubectl", "create", "namespace", name])
    run(["kubectl", "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted"])
    with watching(name) as kubectl:
        code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"},
                "data": {"slow.py": CODE}}  # fmt: skip
        kubectl.apply(code)
        yield kubectl
    run(["kubectl", "delete", "namespace", name, "--timeout=170s"], timeout=180)


@pytest.fixture(scope="session")
def store(installation: ObjectStore, kubectl: Kubectl) -> ObjectStore:
    """Return the object store under the worker's prefix."""
    return installation.share_with(kubectl)


@pytest.fixture
def delete_later(kubectl: Kubectl) -> Iterator[Callable[[str], None]]:
    """Yield a function that marks a job for deletion after the test."""
    names: list[str] = []
    yield names.append
    if names:
        kubectl("delete", "batchinference", *names, "--ignore-not-found", "--wait=false")


@pytest.fixture
def create(kubectl: Kubectl, delete_later: Callable[[str], None]) -> Callable[[Job], str]:
    """Return a function that applies a job under a unique name and returns the name."""

    def apply(job: Job) -> str:
        job = copy.deepcopy(job)
        job["metadata"]["name"] += f"-{uuid.uuid4().hex[:4]}"
        name: str = job["metadata"]["name"]
        delete_later(name)
        kubectl.apply(job)
        return name

    return apply


@pytest.fixture(scope="session")
def example(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Example]:
    """Return a function that prepares an example and uploads all of its input, or its first files,
    to the object store."""

    def prepare(name: str, files: int | None = None) -> Example:
        from support.jobs.examples import prepared  # imports Ray, which most workers do not need

        directory = prepared(name, tmp_path_factory.mktemp("example"))
        for file in sorted((directory / "data").iterdir())[files:] if files else ():
            file.unlink()
        for part in ("data", "model"):
            if (directory / part).exists():
                store.upload(directory / part, f"{name}/{part}")
        return Example(directory, store, name)

    return prepare


@pytest.fixture(scope="session")
def own_code() -> Job:
    """Return the field `cluster` of a job whose steps are in the module `slow`."""
    volume = {"name": "code", "configMap": {"name": "code"}}
    mount = {"name": "code", "mountPath": "/code"}
    return {
        "volumes": [volume],
        "volumeMounts": [mount],
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
    }


@pytest.fixture(scope="session")
def slow_job(
    own_code: Job, store: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Job]:
    """Return a function that creates a slow job. The job needs almost no CPU, filters every tenth
    row, and ends only after `open_gate`."""
    directory = tmp_path_factory.mktemp("slow")
    for rows in (GATED, PAUSED, LONG):
        (directory / str(rows)).mkdir()
        lines = "".join(f"line {n}\n" for n in range(rows))
        (directory / str(rows) / "lines.txt").write_text(lines)
    store.upload(directory, "slow/in")

    def make(name: str, rows: int = GATED) -> Job:
        output = f"slow/{name}-{uuid.uuid4().hex[:6]}"
        slow = python_step("slow", "slow:Slow", batchSize=25, replicas={})
        slow["python"]["callArgs"] = {"last": f"line {rows - 1}", "gate": store.uri(f"{output}-go")}
        return document(
            name,
            read={"format": "text", "paths": [store.uri(f"slow/in/{rows}")]},
            steps=[slow, {"name": "most", "filter": "not endswith(text, '0')"}],
            write={"format": "parquet", "path": store.uri(output)},
            cluster=copy.deepcopy(own_code),
        )

    return make


@pytest.fixture(scope="session")
def open_gate(store: ObjectStore) -> Callable[[Job], None]:
    """Return a function that lets a slow job end."""
    return lambda job: store.put(job["spec"]["steps"][0]["python"]["callArgs"]["gate"])


@pytest.fixture
def open_slot(kubectl: Kubectl) -> Iterator[Callable[[], None]]:
    """Yield a function that labels the node. Until then, pods that select the label are pending."""
    node = kubectl.list("nodes")[0]["metadata"]["name"]
    yield lambda: kubectl("label", "node", node, f"{SLOT}=open") and None
    kubectl("label", "node", node, f"{SLOT}-")
