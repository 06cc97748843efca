"""Runs the operator as a process with the permissions, settings and files of the chart's pod."""

from __future__ import annotations

import base64
import copy
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3

from support.cluster.chart import container, defaults_map, one
from support.servers.api_server import ApiServer
from support.servers.dashboard import Dashboard
from support.servers.ports import free_port

Object = dict[str, Any]

PROGRAM = Path(sys.executable).with_name("batchinference-operator")
_DNS = Path(__file__).with_name("cluster_dns")
_GRANTED = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


class OperatorProcess:
    """The operator of one release, which can be stopped and started any number of times."""

    def __init__(
        self, server: ApiServer, manifests: list[Object], directory: Path, dashboard: Dashboard
    ) -> None:
        self.manifests = manifests
        self.log = directory / "operator.log"
        self._process: subprocess.Popen[bytes] | None = None
        account = one(manifests, "ServiceAccount")["metadata"]
        self.user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
        for manifest in manifests:
            if manifest["kind"] in _GRANTED:
                server.apply(manifest)
        self.token = server.token(account["namespace"], account["name"])
        kubeconfig = server.kubeconfig(directory / "kubeconfig", self.token)
        self.environment = _environment(manifests, _mounted(manifests, directory)) | {
            "HOME": str(directory),
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "BATCHINFERENCE_OPERATOR_HEALTH_PORT": str(free_port()),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_DNS), os.getenv("PYTHONPATH")])),
            "DASHBOARD_OF_TEST": dashboard.address,
        }

    def replica(self, name: str) -> OperatorProcess:
        """Return another replica of the same release, not started yet."""
        other = copy.copy(self)
        other._process = None
        other.log = self.log.with_name(f"{name}.log")
        other.environment = self.environment | {
            "BATCHINFERENCE_OPERATOR_POD_NAME": name,
            "BATCHINFERENCE_OPERATOR_HEALTH_PORT": str(free_port()),
        }
        return other

    @property
    def health(self) -> str:
        return f"http://127.0.0.1:{self.environment['BATCHINFERENCE_OPERATOR_HEALTH_PORT']}/healthz"

    def answers(self, path: str) -> int:
        """Return the HTTP status of the operator's answer, or 0 if it gives none."""
        try:
            return urllib3.request(
                "GET", self.health.replace("/healthz", path), retries=False
            ).status
        except urllib3.exceptions.HTTPError:
            return 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PROGRAM)], env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )

    def stop(self, seconds: float = 10) -> int:
        """Stop it as Kubernetes does, and return its exit code. Raises TimeoutExpired if it takes
        longer."""
        assert self._process is not None
        self._process.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float = 10) -> int:
        """Wait until it ends, and return its exit code. Raises TimeoutExpired after `seconds`."""
        assert self._process is not None
        return self._process.wait(timeout=seconds)

    def kill(self) -> None:
        """Kill it, as a power loss of its node does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextmanager
    def restarted(self) -> Iterator[None]:
        """Start the operator again whenever it ends while the block runs, as the kubelet does."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.1):
                if self._process is not None and self._process.poll() is not None:
                    self.start()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def output(self) -> str:
        """Return everything that it has logged so far."""
        return self.log.read_text() if self.log.exists() else ""

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _mounted(manifests: list[Object], directory: Path) -> dict[str, Path]:
    """Write the files of the pod's ConfigMaps and Secrets, and return their directories by mount
    path."""
    spec = one(manifests, "Deployment")["spec"]["template"]["spec"]
    paths = {mount["name"]: mount["mountPath"] for mount in container(manifests)["volumeMounts"]}
    locations = {}
    for volume in spec["volumes"]:
        if files := _files(manifests, volume):
            location = directory / volume["name"]
            location.mkdir()
            for name, content in files.items():
                (location / name).write_bytes(content)
            locations[paths[volume["name"]]] = location
    return locations


def _files(manifests: list[Object], volume: Object) -> dict[str, bytes]:
    if "configMap" in volume:
        assert defaults_map(manifests)["metadata"]["name"] == volume["configMap"]["name"]
        return {name: text.encode() for name, text in defaults_map(manifests)["data"].items()}
    if "secret" in volume:
        assert one(manifests, "Secret")["metadata"]["name"] == volume["secret"]["secretName"]
        data = one(manifests, "Secret")["data"]
        return {name: base64.b64decode(text) for name, text in data.items()}
    return {}


def _environment(manifests: list[Object], paths: dict[str, Path]) -> dict[str, str]:
    """Return the container's variables, with mount paths replaced by the directories here."""
    result = {}
    for variable in container(manifests)["env"]:
        value = str(variable["value"])
        for mounted, location in paths.items():
            value = value.replace(f"{mounted}/", f"{location}/")
        result[variable["name"]] = value
    return result
