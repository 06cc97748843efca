"""An S3 server in the cluster, and a pod through which tests reach it.

S3_IMAGE is the server's image: versitygw, which keeps objects as plain files.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.kubectl import Kubectl

S3_IMAGE = os.environ.get("S3_IMAGE", "ghcr.io/versity/versitygw:v1.8.0")
SECRET = "s3-credentials"
BUCKET = "data"
KEYS = {"AWS_ACCESS_KEY_ID": "e2e", "AWS_SECRET_ACCESS_KEY": "e2e-secret-of-the-tests"}
SECRET_VALUE = KEYS["AWS_SECRET_ACCESS_KEY"]
JOB_ENVIRONMENT: list[dict[str, Any]] = [
    # a short name: every namespace of the tests has a server of its own
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
    """The S3 server of a namespace. Paths below are keys of its one bucket."""

    kubectl: Kubectl

    def start(self, toolbox_image: str) -> None:
        """Start the server, and the pod with Python and tar that talks to it."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "stringData": KEYS,
        }
        self.kubectl.apply(secret, self.server(), service("s3", 7070), _toolbox(toolbox_image))
        self.kubectl("wait", "--for=condition=Ready", "pod/s3", "pod/toolbox", "--timeout=180s",
                     timeout=190)  # fmt: skip
        self._python(f"fs.create_dir('{BUCKET}')")

    def server(self) -> dict[str, Any]:
        """The pod that the service `s3` leads to."""
        return server()

    def uri(self, key: str) -> str:
        return f"s3://{BUCKET}/{key}"

    def upload(self, source: Path, key: str) -> None:
        """Put a directory's files below `key`."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(source, "upload")
        self._tar("rm -rf /tmp/upload && tar -x -C /tmp", archive.getvalue())
        self._python(f"f.copy_files('/tmp/upload', '{BUCKET}/{key}', local, fs)")

    def download(self, key: str, target: Path) -> Path:
        """Get all below `key` into a directory."""
        self._tar("rm -rf /tmp/download && mkdir /tmp/download")
        self._python(f"f.copy_files('{BUCKET}/{key}', '/tmp/download', fs, local)")
        content = self._tar("tar -c -C /tmp/download .")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(target, filter="data")
        return target

    def python(self, script: str) -> str:
        """What a script prints in the pipeline's image, beside the server."""
        return self.kubectl("exec", "toolbox", "--", "python3", "-c", script)

    def verified(self, uri: str) -> dict[str, Any]:
        """What `batchinference verify` says of an output."""
        command = f"batchinference verify {uri} --json || true"
        said = self.kubectl("exec", "toolbox", "--", "sh", "-c", command)
        found: dict[str, Any] = json.loads(said)
        return found

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
    """A pod under the strictest Pod Security level, with volumes that live as long as it."""
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
    """The way to the pod of this name."""
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
    """How many rows counted when each attempt at an output began."""
    script = f"""
import json
from batchinference.pipeline.storage import Address
for place in Address("{output}/_batchinference/attempts").directories():
    start = json.loads((place / "start.json").read())
    print(sum(piece["counts"]["read"] for piece in start["pieces"]))
"""
    return [int(line) for line in store.python(script).split()]
