"""An S3 server whose process can be killed, the proxy in front of it, and the row counter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from support.cluster.deployment import PIPELINE_IMAGE
from support.cluster.object_store import RESTRICTED, ObjectStore, pod, server, service

Object = dict[str, Any]
PODS = Path(__file__).parent / "pods"
FAKE_VLLM = PODS.parents[1] / "support" / "models" / "fake_vllm" / "vllm.py"
PROXY = "http://proxy:7071"
USUAL_SHARE = 0.01
"""The share of requests into which the proxy injects faults."""
CODE_VOLUME: Object = {"name": "code", "configMap": {"name": "chaos-code"}}
CODE_MOUNT: Object = {"name": "code", "mountPath": "/code"}


class ChaosStore(ObjectStore):
    """The S3 server of a namespace and the proxy in front of it."""

    def start_all(self, seed: int) -> None:
        code = {path.name: path.read_text() for path in (*PODS.glob("*.*"), FAKE_VLLM)}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chaos-code"},
                  "data": code}  # fmt: skip
        self.kubectl.apply(config, _proxy(seed), service("proxy", 7071, 7072))
        self.start(PIPELINE_IMAGE)
        self.kubectl("wait", "--for=condition=Ready", "pod/proxy", "--timeout=60s")

    def server(self) -> Object:
        return _killable(server())

    def kill(self, away: float) -> None:
        """Kill the server's process, if there is one. It is restarted `away` seconds later."""
        command = f"echo {away:.1f} > /tmp/away; kill -9 $(cat /tmp/server) || true"
        self.kubectl("exec", "s3", "--container=keeper", "--", "sh", "-c", command)

    def storm(self, seconds: float, share: float) -> None:
        """Make the proxy inject faults into this share of all requests for a while."""
        command = f"echo $(($(date +%s) + {round(seconds)})) {share:.2f} > /tmp/storm"
        self.kubectl("exec", "proxy", "--container=proxy", "--", "sh", "-c", command)

    def injected_faults(self) -> Counter[str]:
        """Count the injected faults by kind."""
        return Counter(line.split("\t")[0] for line in self._file("proxy", "/tmp/faults"))

    def open_gate(self, job: str) -> None:
        """Let a job end."""
        self.kubectl("exec", "proxy", "--container=row-counter", "--", "touch", f"/tmp/rows-{job}")

    def passed(self, job: str) -> int:
        """Return how many rows of a job its first step has seen, repetitions included."""
        lines = (line.split() for line in self._file("row-counter", "/tmp/rows"))
        return sum(int(rows) for name, rows in lines if name == job)

    def _file(self, container: str, path: str) -> list[str]:
        kubectl = self.kubectl("exec", "proxy", f"--container={container}", "--", "cat", path)
        return kubectl.splitlines()


def _killable(body: Object) -> Object:
    """Return the server's pod, changed so that a keeper (pods/s3_server.py) runs and restarts the
    server. Kubernetes would delay restarts of a container for minutes. The server's own container
    is idle and only provides the program."""
    (container,) = body["spec"]["containers"]
    idle = {"args": ["--port", "127.0.0.1:7079", "posix", "/idle"], "name": "carrier",
            "volumeMounts": [{"name": "idle", "mountPath": "/idle"}]}  # fmt: skip
    carrier = {**container, **idle}
    del carrier["readinessProbe"]
    keeper = _python("keeper", "s3_server.py", *container["args"])
    kept = ("env", "readinessProbe", "resources", "volumeMounts")
    keeper |= {key: container[key] for key in kept}
    full = pod("s3", [carrier, _with_code(keeper)], ["data", "iam", "idle"])
    full["spec"]["shareProcessNamespace"] = True
    for each in full["spec"]["containers"]:
        # processes of one user and group may execute each other's program
        each["securityContext"] = {**RESTRICTED, "runAsGroup": 1000}
    return _with_code_volume(full)


def _proxy(seed: int) -> Object:
    proxy = _python("proxy", "fault_proxy.py", str(seed), str(USUAL_SHARE))
    proxy["readinessProbe"] = {"tcpSocket": {"port": 7071}, "periodSeconds": 2}
    row_counter = _python("row-counter", "row_counter.py", "/tmp/rows")
    return _with_code_volume(pod("proxy", [_with_code(proxy), _with_code(row_counter)], []))


def _python(name: str, program: str, *arguments: str) -> Object:
    return {
        "name": name,
        "image": PIPELINE_IMAGE,
        "command": ["python3", f"{CODE_MOUNT['mountPath']}/{program}", *arguments],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
        "securityContext": RESTRICTED,
    }


def _with_code(container: Object) -> Object:
    return {**container, "volumeMounts": [*container.get("volumeMounts", []), dict(CODE_MOUNT)]}


def _with_code_volume(body: Object) -> Object:
    volume = {"name": CODE_VOLUME["name"], "configMap": CODE_VOLUME["configMap"]}
    body["spec"]["volumes"].append(volume)
    return body
