"""The pod of `helm test` succeeds when the operator is ready."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler

import pytest

from support.cluster.chart import Chart, one
from support.servers.loopback import handled_by


@pytest.mark.parametrize(("unready", "exit_code"), [(1, 0), (50, 1)])
def test_pod_of_helm_test_waits_for_a_ready_operator(
    chart: Chart, unready: int, exit_code: int
) -> None:
    codes = iter([503] * unready + [200])

    class Operator(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(next(codes) if self.path == "/readyz" else 404)
            self.end_headers()

    manifests = chart.manifests()
    (container,) = one(manifests, "Pod")["spec"]["containers"]
    program, flag, script = container["command"]
    assert (program, flag) == ("python", "-c")
    service = f"{one(manifests, 'Service')['metadata']['name']}:8080"
    with handled_by(Operator) as port:
        script = script.replace(service, f"127.0.0.1:{port}").replace("time.sleep(2)", "")
        done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == exit_code
