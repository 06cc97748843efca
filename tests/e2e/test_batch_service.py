"""The batch service on a cluster, with an endpoint that needs no GPU: each part is killed, and the
unmodified client of OpenAI gets each answer once."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
import yaml

from support.cluster.deployment import CHART, PIPELINE_IMAGE, RELEASE
from support.cluster.kubectl import Kubectl, eventually, run
from support.cluster.object_store import KEYS, ObjectStore
from support.cluster.programs import start_program
from support.cluster.waits import JOB_END, is_ready, kill, pods, wait_for_rows
from support.service.running import ENDPOINT, FAILING_ROW, requests

pytestmark = pytest.mark.timeout(900)
Object = dict[str, Any]

NAME = f"{RELEASE}-batch-inference-operator-batch"
SELECTOR = "app.kubernetes.io/name=batch-inference-operator-batch-service"
KEY = "key-of-the-end-to-end-tests"
REQUESTS = 600
ANSWERS = f"""
import json, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Endpoint(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = request["messages"][-1]["content"]
        time.sleep(1)
        message = {{"role": "assistant", "content": text.upper()}}
        choice = {{"index": 0, "message": message, "finish_reason": "stop"}}
        refused = text == "question {FAILING_ROW}"
        answer = {{"error": {{"message": "refused"}}}} if refused else {{"choices": [choice]}}
        content = json.dumps(answer).encode()
        self.send_response(400 if refused else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_): pass

ThreadingHTTPServer(("", 8000), Endpoint).serve_forever()
"""


@pytest.fixture(scope="module")
def endpoint(kubectl: Kubectl) -> Iterator[str]:
    """Run an endpoint that answers within a second, and yield its URL."""
    start_program(kubectl, "endpoint", ANSWERS, 8000, seconds=120)
    yield "http://endpoint:8000/v1"
    kubectl("delete", "pod/endpoint", "service/endpoint", "--wait=false")


@pytest.fixture(scope="module")
def batch_service(kubectl: Kubectl, store: ObjectStore, endpoint: str) -> Iterator[Kubectl]:
    """Run two replicas of the service in the namespace of the worker, which is restricted."""
    model = {"runtime": "http", "api": "chat", "url": endpoint, "concurrency": 8}
    own = {"inputs": {"body": "body"}, "request": "body", "output": "response"}
    step = {"name": "answer", "batchSize": 8, "model": {**model, **own}}
    host = f"http://s3.{store.kubectl.namespace}.svc.cluster.local:7070"
    environment = {"AWS_ENDPOINT_URL": host, "AWS_REGION": "us-east-1", **KEYS}
    values = {
        "enabled": True,
        "image": PIPELINE_IMAGE,
        "path": store.uri("batch-service"),
        "keysSecret": NAME,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "models": [{"name": "small", "spec": {"steps": [step]}}],
        "resources": {"requests": {"cpu": "20m", "memory": "256Mi"}},
    }
    hashed = hashlib.sha256(KEY.encode()).hexdigest()
    keys = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": NAME},
        "stringData": {f"{kubectl.namespace}.first": hashed},
    }
    objects = [*rendered(values, kubectl.namespace), keys]
    kubectl.apply(*objects)
    kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=180s", timeout=190)
    yield kubectl
    kubectl("delete", "--filename", "-", "--wait=false", text=yaml.safe_dump_all(objects))


def rendered(values: Object, namespace: str) -> list[Object]:
    """Return the objects of the service, which the release of the other tests does not have."""
    command = ["helm", "template", RELEASE, str(CHART), "--namespace", namespace]
    shown = ["--show-only", "templates/batch-service.yaml", "--values", "-"]
    given = {
        "batchService": values,
        "image": {"pullPolicy": "Always"},
        "watchNamespaces": [namespace],
    }
    text = run([*command, *shown], text=json.dumps(given))
    return [result for result in yaml.safe_load_all(text) if result]


@contextmanager
def client_of(service_pods: Kubectl) -> Iterator[openai.OpenAI]:
    """Yield a client of one replica."""
    texts = ["kubectl", "--namespace", service_pods.namespace, "port-forward"]
    with subprocess.Popen(
        [*texts, f"service/{NAME}", ":80"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            match = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
            assert match
            yield openai.OpenAI(api_key=KEY, base_url=f"http://{match[0]}/v1")
        finally:
            process.terminate()


def kill_service(service_pods: Kubectl) -> None:
    """Kill all replicas, and wait for new ones."""
    old = [each["metadata"]["name"] for each in service_pods.list("pods", SELECTOR)]
    assert len(old) == 2
    kill(service_pods, old)

    def replaced() -> bool:
        texts = service_pods.list("pods", SELECTOR)
        return len({each["metadata"]["name"] for each in texts if is_ready(each)} - set(old)) == 2

    eventually("two new replicas are ready", replaced, 180)


def lines(content: bytes) -> list[Object]:
    return [json.loads(line) for line in content.splitlines()]


def test_each_line_is_answered_once_although_every_part_is_killed(
    batch_service: Kubectl, kubectl: Kubectl, operator: Kubectl
) -> None:
    content = requests(REQUESTS)
    with client_of(batch_service) as client:
        file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    kill_service(batch_service)
    with client_of(batch_service) as client:
        assert client.files.content(file.id).content == content
        batch = client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
    kill_service(batch_service)
    name = batch.id.replace("_", "-")
    kill(operator, [each["metadata"]["name"] for each in operator.list("pods")])
    wait_for_rows(kubectl, name)
    kill(kubectl, pods(kubectl, name, "head"))
    kubectl.wait_complete(name, JOB_END)
    with client_of(batch_service) as client:
        done = client.batches.retrieve(batch.id)
        assert (done.status, done.errors) == ("completed", None)
        assert done.output_file_id
        assert done.error_file_id
        answers = lines(client.files.content(done.output_file_id).content)
        refusals = lines(client.files.content(done.error_file_id).content)
    ids = Counter(line["custom_id"] for line in [*answers, *refusals])
    assert ids == Counter(f"row-{number}" for number in range(REQUESTS))
    assert [line["custom_id"] for line in refusals] == [f"row-{FAILING_ROW}"]
    texts = {line["response"]["body"]["choices"][0]["message"]["content"] for line in answers}
    assert len(texts) == REQUESTS - 1


def test_a_cancelled_batch_keeps_its_answers(batch_service: Kubectl, kubectl: Kubectl) -> None:
    with client_of(batch_service) as client:
        file = client.files.create(file=("a.jsonl", requests(5 * REQUESTS)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
        name = batch.id.replace("_", "-")
        wait_for_rows(kubectl, name)
        assert client.batches.cancel(batch.id).status == "cancelling"
        eventually(
            "the batch is cancelled",
            lambda: client.batches.retrieve(batch.id).status == "cancelled",
            120,
        )
        done = client.batches.retrieve(batch.id)
        assert done.output_file_id
        answers = lines(client.files.content(done.output_file_id).content)
    assert 0 < len({line["custom_id"] for line in answers}) == len(answers) < 5 * REQUESTS
