"""A real API server with etcd, for tests that need Kubernetes but no node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml

from support.cluster.kubectl import eventually
from support.servers.kubeconfig import write_kubeconfig
from support.servers.ports import free_port

Object = dict[str, Any]

ADMIN_TOKEN = "admin-of-a-test"
MERGE_PATCH = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class Refused(Exception):
    """The API server refused a request: its message and code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class ApiServer:
    """A kube-apiserver process and its address."""

    url: str
    certificate: Path
    audit_log: Path
    connections: urllib3.PoolManager
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.process = _started(self.command, self.log)
        try:
            eventually("a ready API server", self.ready, 60, 0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log.read_text()[-2000:]}") from None

    def kill(self) -> None:
        """Kill it without a graceful shutdown."""
        self.process.kill()
        self.process.wait()

    def ready(self) -> bool:
        if not self.certificate.exists():
            return False
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        try:
            answer = self.connections.request("GET", f"{self.url}/readyz", headers=headers)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend it during the block, with all connections open."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def call(
        self, method: str, path: str, body: Any = None, *, headers: Any = None, **query: str
    ) -> Any:
        """Return the answer to a request, as cluster admin by default. Raises Refused.

        A body of bytes is sent as it is.
        """
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        content = json.dumps(body).encode() if isinstance(body, dict | list) else body
        sent = {
            "Authorization": f"Bearer {ADMIN_TOKEN}",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        answer = self.connections.request(method, url, body=content, headers=sent)
        if answer.status >= 400:
            raise Refused(answer.status, _message(answer.data))
        return json.loads(answer.data)

    def get(self, path: str, **query: str) -> Any:
        return self.call("GET", path, **query)

    def post(self, path: str, body: Object, **query: str) -> Any:
        """Create an object. The server refuses unknown fields."""
        return self.call("POST", path, body, **{"fieldValidation": "Strict", **query})

    def patch(self, path: str, patch: Object, **query: str) -> Any:
        return self.call("PATCH", path, patch, headers={"Content-Type": MERGE_PATCH}, **query)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def apply(self, body: Object, **options: str) -> Any:
        """Create or change an object as `kubectl apply --server-side` does."""
        headers = {"Content-Type": "application/apply-patch+yaml"}
        path = f"{path_of(body)}/{body['metadata']['name']}"
        query = {"fieldManager": "test", "force": "true", "fieldValidation": "Strict", **options}
        return self.call("PATCH", path, body, headers=headers, **query)

    def install_crd(self, definition: Object) -> None:
        """Install a definition and wait until its resources are served."""
        self.apply(definition)
        spec = definition["spec"]
        version = next(version["name"] for version in spec["versions"] if version["storage"])
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        eventually(f"{path} is served", lambda: self.serves(path), 30, 0.05)

    def serves(self, path: str) -> bool:
        try:
            return bool(self.get(path))
        except Refused:
            return False

    def token(self, namespace: str, service_account: str) -> str:
        """Return a token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        text: str = self.post(path, body)["status"]["token"]
        return text

    def rules(self, token: str, namespace: str) -> Object:
        """Return the rights of the bearer in a namespace, as `kubectl auth can-i --list` does."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        headers = {"Authorization": f"Bearer {token}"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        status: Object = self.call("POST", path, review, headers=headers)["status"]
        return status

    def kubeconfig(self, path: Path, token: str = ADMIN_TOKEN) -> Path:
        """Write a kubeconfig with a token."""
        certificate = {"certificate-authority": str(self.certificate)}
        return write_kubeconfig(path, self.url, token, **certificate)

    def requests_of(self, user: str) -> list[Object]:
        """Return the audit events of a user's requests."""
        with self.audit_log.open() as lines:
            events = (json.loads(line) for line in lines if user in line)
            return [event for event in events if event["user"]["username"] == user]


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except ValueError:
        return content.decode()  # the error for an unknown path is plain text


_VERSIONS = {
    "BatchInference": "batchinference.dev/v1beta1",
    "BatchInferenceSchedule": "batchinference.dev/v1beta1",
    "RayJob": "ray.io/v1",
    "RayCluster": "ray.io/v1",
}
_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
    "RuntimeClass": "runtimeclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
_CLUSTER_WIDE = {
    "PriorityClass",
    "RuntimeClass",
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def path_of(body: Object) -> str:
    """Return the path of an object's collection."""
    return collection(body["apiVersion"], body["kind"], body["metadata"].get("namespace", ""))


def collection(api_version: str, kind: str, namespace: str = "") -> str:
    root = "/api" if "/" not in api_version else "/apis"
    within = "" if kind in _CLUSTER_WIDE else f"/namespaces/{namespace}"
    return f"{root}/{api_version}{within}/{_PLURALS.get(kind, f'{kind.lower()}s')}"


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test, accessed as admin."""

    server: ApiServer
    name: str

    def path(self, kind: str, name: str = "") -> str:
        path = collection(_VERSIONS.get(kind, "v1"), kind, self.name)
        return f"{path}/{name}" if name else path

    def create(self, body: Object, **query: str) -> Any:
        body = {**body, "metadata": {**body["metadata"], "namespace": self.name}}
        return self.server.post(self.path(body["kind"]), body, **query)

    def get(self, kind: str, name: str) -> Any:
        return self.server.get(self.path(kind, name))

    def find(self, kind: str, name: str) -> Any:
        """Return the object, or None."""
        try:
            return self.get(kind, name)
        except Refused as refusal:
            if refusal.code != 404:
                raise
            return None

    def list(self, kind: str) -> list[Object]:
        items: list[Object] = self.server.get(self.path(kind))["items"]
        return items

    def patch(self, kind: str, name: str, patch: Object) -> Any:
        return self.server.patch(self.path(kind, name), patch, fieldValidation="Strict")

    def patch_status(self, kind: str, name: str, status: Any) -> Any:
        path = f"{self.path(kind, name)}/status"
        return self.server.patch(path, {"status": status}, fieldValidation="Strict")

    def delete(self, kind: str, name: str) -> None:
        self.server.delete(self.path(kind, name))


def refusal(namespace: Namespace, body: Object) -> str | None:
    """Return the API server's message about a document; None when it accepts it."""
    try:
        namespace.create(body, dryRun="All")
    except Refused as refused:
        return str(refused)
    return None


def new_namespace(server: ApiServer, name: str, labels: Object | None = None) -> Namespace:
    """Create a namespace with its default service account."""
    metadata = {"name": name, "labels": labels or {}}
    server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    account = {"name": "default", "namespace": name}
    server.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    return Namespace(server, name)


@contextmanager
def running(assets: Path, directory: Path, *options: str) -> Iterator[ApiServer]:
    """Run an empty API server during the block, with further command line options."""
    storage, port = f"http://127.0.0.1:{free_port()}", free_port()
    certificate = directory / "certificates" / "apiserver.crt"
    server = ApiServer(
        f"https://127.0.0.1:{port}",
        certificate,
        directory / "audit.log",
        urllib3.PoolManager(maxsize=8, ca_certs=str(certificate), retries=False),
        [*_kube_apiserver(assets, directory, storage, port), *options],
        directory / "apiserver.log",
    )
    with _process(_etcd(assets, directory, storage), directory / "etcd.log"):
        try:
            server.start()
            yield server
        finally:
            server.kill()


def _etcd(assets: Path, directory: Path, storage: str) -> list[str]:
    return [
        str(assets / "etcd"),
        f"--data-dir={directory}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={storage}",
        f"--advertise-client-urls={storage}",
        "--listen-peer-urls=http://127.0.0.1:0",
    ]


def _kube_apiserver(assets: Path, directory: Path, storage: str, port: int) -> list[str]:
    (directory / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')
    (directory / "audit.yaml").write_text(yaml.safe_dump(_AUDIT_POLICY))
    # the server creates its own certificate and key; the key also signs service account tokens
    certificates = directory / "certificates"
    key = certificates / "apiserver.key"
    return [
        str(assets / "kube-apiserver"),
        f"--etcd-servers={storage}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={certificates}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--token-auth-file={directory}/tokens.csv",
        "--authorization-mode=RBAC",
        # as on OpenShift: setting an owner reference requires rights to the owner
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        f"--audit-policy-file={directory}/audit.yaml",
        f"--audit-log-path={directory}/audit.log",
    ]


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with _started(command, log) as process:
        try:
            yield
        finally:
            process.kill()


def _started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a Go program that collects garbage rarely, because that takes a third of its time, but
    as often as necessary to stay below 2 GiB."""
    environment = {**os.environ, "GOGC": "400", "GOMEMLIMIT": "2GiB"}
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
