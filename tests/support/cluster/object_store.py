"""An S3 server in the cluster, and a pod through which tests reach it.

S3_IMAGE is the server's image: versitygw, which keeps objects as plain files. Several namespaces
can share one server.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster.kubectl import Kubectl

S3_IMAGE = os.environ.get("S3_IMAGE", "ghcr.io/versity/versitygw:v1.8.0")
SECRET = "s3-credentials"
BUCKET = "data"
KEYS = {"AWS_ACCESS_KEY_ID": "e2e", "AWS_SECRET_ACCESS_KEY": "e2e-secret-of-the-tests"}
JOB_ENVIRONMENT: list[dict[str, Any]] = [
    # a short name: each namespace has a service `s3`, even without its own server
    {"name": "AWS_ENDPOINT_URL", "value": "http://s3:7070"},
    *(
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": name}}}
        for name in KEYS
    ),
]
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True)
class ObjectStore:
    """The S3 server of a namespace. Methods take keys of its only bucket, relative to a prefix."""

    kubectl: Kubectl
    prefix: str = ""

    def start(self, toolbox_image: str) -> None:
        """Start the server, and the pod with Python and tar through which tests access it."""
        objects = (_secret(), self.server(), service("s3", 7070), _toolbox(toolbox_image))
        self.kubectl.apply(*objects)
        self.kubectl("wait", "--for=condition=Ready", "pod/s3", "pod/toolbox", "--timeout=280s",
                     timeout=290)  # fmt: skip
        self._python(f"fs.create_dir('{BUCKET}')")

    def share_with(self, kubectl: Kubectl) -> ObjectStore:
        """Make the server available in another namespace, with a separate prefix."""
        host = f"s3.{self.kubectl.namespace}.svc.cluster.local"
        alias = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s3"},
            "spec": {"type": "ExternalName", "externalName": host},
        }
        kubectl.apply(_secret(), alias)
        return ObjectStore(self.kubectl, f"{kubectl.namespace}/")

    def server(self) -> dict[str, Any]:
        """Return the pod behind the Service `s3`."""
        return server()

    def uri(self, key: str) -> str:
        return f"s3://{BUCKET}/{self.prefix}{key}"

    def upload(self, source: Path, key: str) -> None:
        """Copy a directory's files to `key`."""
        archive, location = io.BytesIO(), uuid.uuid4().hex
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(source, location)
        self._tar("tar -x -C /tmp", archive.getvalue())
        self._python(f"f.copy_files('/tmp/{location}', '{BUCKET}/{self.prefix}{key}', local, fs)")

    def put(self, uri: str) -> None:
        """Create an empty object."""
        self._python(f"fs.open_output_stream('{uri.removeprefix('s3://')}').close()")

    def download(self, key: str, target: Path) -> Path:
        """Copy everything below `key` into a directory."""
        text = f"/tmp/{uuid.uuid4().hex}"
        self._tar(f"mkdir {text}")
        self._python(f"f.copy_files('{BUCKET}/{self.prefix}{key}', '{text}', fs, local)")
        content = self._tar(f"tar -c -C {text} .")
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", target], input=content, check=True)
        return target

    def python(self, script: str) -> str:
        """Run a Python script in the pipeline's image, and return its output."""
        return self.kubectl("exec", "toolbox", "--", "python3", "-c", script)

    @contextmanager
    def forwarded(self) -> Iterator[str]:
        """Make the server available on this machine during the block, and yield its address."""
        namespace = ["--namespace", self.kubectl.namespace]
        command = ["kubectl", *namespace, "port-forward", "pod/s3", ":7070"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                match = re.search(r"127\.0\.0\.1:\d+", line)
                assert match, f"kubectl port-forward has failed: {line}"
                yield f"http://{match[0]}"
            finally:
                process.terminate()

    def verified(self, uri: str) -> dict[str, Any]:
        """Return the findings of `batchinference verify` for an output."""
        command = f"batchinference verify {uri} -o json || true"
        printed = self.kubectl("exec", "toolbox", "--", "sh", "-c", command)
        document: dict[str, Any] = json.loads(printed)
        return document

    def _python(self, statement: str) -> None:
        setup = (
            "import os, pyarrow.fs as f; local = f.LocalFileSystem(); "
            "fs = f.S3FileSystem(endpoint_override=os.environ['AWS_ENDPOINT_URL'], "
            "region='us-east-1', allow_bucket_creation=True); "
        )
        self.kubectl("exec", "toolbox", "--", "python3", "-c", setup + statement)

    def _tar(self, command: str, content: bytes = b"") -> bytes:
        exec_ = ["kubectl", "-n", self.kubectl.namespace, "exec", "-i", "toolbox", "--"]
        done = subprocess.run(
            [*exec_, "sh", "-c", command],
            input=content,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout


def _secret() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": KEYS}


def server() -> dict[str, Any]:
    container = {
        "name": "s3",
        "image": S3_IMAGE,
        "args": ["--port", ":7070", "--iam-dir", "/iam", "posix", "/data"],
        "env": [
            {"name": "ROOT_ACCESS_KEY", "value": KEYS["AWS_ACCESS_KEY_ID"]},
            {"name": "ROOT_SECRET_KEY", "value": KEYS["AWS_SECRET_ACCESS_KEY"]},
        ],
        "readinessProbe": {"tcpSocket": {"port": 7070}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "iam", "mountPath": "/iam"},
        ],
        "securityContext": RESTRICTED,
    }
    return pod("s3", [container], ["data", "iam"])


def _toolbox(image: str) -> dict[str, Any]:
    container = {
        "name": "toolbox",
        "image": image,
        "command": ["sleep", "infinity"],
        "env": JOB_ENVIRONMENT,
        "securityContext": RESTRICTED,
    }
    return pod("toolbox", [container], [])


def pod(name: str, containers: list[dict[str, Any]], volumes: list[str]) -> dict[str, Any]:
    """Return a pod that the restricted Pod Security level admits, with empty volumes."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"fsGroup": 1000},
            "containers": containers,
            "volumes": [{"name": volume, "emptyDir": {}} for volume in volumes],
        },
    }


def service(name: str, *ports: int) -> dict[str, Any]:
    """Return a Service for the pod of this name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": f"port-{port}", "port": port} for port in ports],
        },
    }


def starts(store: ObjectStore, output: str) -> list[int]:
    """Return how many rows were committed when each attempt at an output began."""
    script = f"""
import json
from batchinference.pipeline.storage.location import Location
for place in Location("{output}/_batchinference/attempts").directories():
    start = json.loads((place / "start.json").read())
    print(sum(entry["counts"]["read"] for entry in start["entries"]))
"""
    return [int(line) for line in store.python(script).split()]
