"""The batch service as a process, killed at any time, with a real API server and S3 server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support.cluster.chart import Chart
from support.cluster.kubectl import eventually
from support.jobs.without_ray import run_without_ray
from support.servers.api_server import ApiServer, Namespace, Refused
from support.servers.s3 import S3Server, s3_server
from support.service.process import ServiceProcess
from support.service.running import ANSWER, ENDPOINT, requests

BUCKET = "data"
OWN = {"enabled": True, "path": f"s3://{BUCKET}/batches", "keysSecret": "keys"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    directory = tmp_path_factory.mktemp("s3")
    (directory / BUCKET).mkdir()
    with s3_server(directory) as server:
        yield server


@pytest.fixture
def service(
    server: ApiServer, namespace: Namespace, chart: Chart, store: S3Server, tmp_path: Path
) -> Iterator[ServiceProcess]:
    """Yield a running service that has only the permissions of the chart."""
    values = {"batchService": OWN, "watchNamespaces": [namespace.name]}
    for each in chart.manifests(values, "--namespace", namespace.name):
        if each["metadata"]["name"].endswith("-batch") and each["kind"] in (
            *("ServiceAccount", "Role", "RoleBinding"),
        ):
            server.apply(each)
            account = each["metadata"]["name"]
    process = ServiceProcess(tmp_path, server, store, {namespace.name: "key-of-the-namespace"})
    token = server.token(namespace.name, account)
    models = [{"name": "small", "spec": {"steps": [ANSWER]}}]
    process.configure(token, path=OWN["path"], models=models)
    process.start()
    yield process
    process.kill()


def restarted(service: ServiceProcess) -> None:
    service.kill()
    service.start()


def test_files_and_batches_outlive_every_process(
    service: ServiceProcess, namespace: Namespace
) -> None:
    client = service.client(namespace.name)
    content = requests(1000)
    file = client.files.create(file=("a.jsonl", content), purpose="batch")
    restarted(service)
    assert client.files.content(file.id).content == content
    assert list(client.files.list()) == [file]
    batch = client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={"k": "v"}
    )
    restarted(service)
    assert client.batches.retrieve(batch.id) == batch
    assert list(client.batches.list()) == [batch]
    cancelled = client.batches.cancel(batch.id)
    restarted(service)
    assert client.batches.retrieve(batch.id) == cancelled
    job = namespace.get("BatchInference", batch.id.replace("_", "-"))
    assert job["spec"]["suspend"] is True
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_an_upload_that_is_killed_leaves_no_file(
    service: ServiceProcess, namespace: Namespace, store: S3Server
) -> None:
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 900000000\r\n"
        f"Authorization: Bearer {service.keys[namespace.name]}\r\n"
        'Content-Type: multipart/form-data; boundary="x"\r\n\r\n'
        '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.sendall(head.encode() + requests(400_000))
        restarted(service)
    assert list(service.client(namespace.name).files.list()) == []
    assert not [key for key in store.objects(BUCKET) if key.endswith(".jsonl")]


def test_a_batch_whose_creation_is_killed_exists_once(
    service: ServiceProcess, namespace: Namespace, server: ApiServer
) -> None:
    client = service.client(namespace.name)
    file = client.files.create(file=("a.jsonl", requests(1)), purpose="batch")
    made: list[str] = []

    def create() -> None:
        batch = client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
        made.append(batch.id)

    thread = threading.Thread(target=create)
    thread.start()
    path = namespace.path("BatchInference")
    eventually("the batch exists", lambda: server.get(path)["items"], 30, 0.001)
    restarted(service)
    thread.join()
    (job,) = server.get(path)["items"]
    assert made == [job["metadata"]["name"].replace("-", "_")]


def test_answers_are_read_from_the_store(
    service: ServiceProcess, namespace: Namespace, store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = service.client(namespace.name)
    file = client.files.create(file=("a.jsonl", requests(50)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    name = batch.id.replace("_", "-")
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)
    job = namespace.get("BatchInference", name)
    report = run_without_ray({key: job[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    counts = report.counts.model_dump()
    status = {"phase": "Succeeded", "observedGeneration": 1, "conditions": [], "counts": counts}
    namespace.patch_status("BatchInference", name, status)
    done = client.batches.retrieve(batch.id)
    answers = client.files.content(str(done.output_file_id)).content.splitlines()
    ids = [json.loads(line)["custom_id"] for line in answers]
    assert ids == [f"row-{n}" for n in range(50)]
    assert {each.id for each in client.files.list()} == {file.id, done.output_file_id}


def test_a_batch_over_a_bad_file_is_stored_as_failed(
    service: ServiceProcess, namespace: Namespace
) -> None:
    client = service.client(namespace.name)
    file = client.files.create(file=("a.jsonl", b"{\n"), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    assert client.batches.retrieve(batch.id).status == "failed"
    assert client.batches.retrieve(batch.id) == batch


def test_the_service_may_do_nothing_else(
    service: ServiceProcess, namespace: Namespace, server: ApiServer
) -> None:
    token = (service.directory / "account/token").read_text()
    headers = {"Authorization": f"Bearer {token}"}
    for method, path in (
        ("GET", namespace.path("Secret")),
        ("GET", namespace.path("ConfigMap")),
        ("DELETE", namespace.path("BatchInference", "x")),
        ("GET", "/apis/batchinference.dev/v1beta1/namespaces/default/batchinferences"),
    ):
        with pytest.raises(Refused) as refused:
            server.call(method, path, headers=headers)
        assert refused.value.code == 403
