"""The batch service as a process, with a real API server and a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from openai import OpenAI

from support.jobs.command import wait_until
from support.servers.api_server import ApiServer
from support.servers.ports import free_port
from support.servers.s3 import S3Server
from support.service.running import write_keys

PROGRAM = """
import sys
from pathlib import Path
from batchinference.service import __main__ as program, cluster_client
cluster_client.ACCOUNT, program.PORT = Path(sys.argv[1]), int(sys.argv[2])
program.main(*sys.argv[3:])
"""


@dataclass
class ServiceProcess:
    """A process of the service, which can be killed and started again."""

    directory: Path
    api: ApiServer
    store: S3Server
    keys: dict[str, str]
    """The keys by namespace."""
    port: int = field(default_factory=free_port)

    def configure(self, token: str, **config: Any) -> None:
        """Write the files that Kubernetes would mount."""
        account = self.directory / "account"
        account.mkdir()
        (account / "token").write_text(token)
        (account / "ca.crt").write_bytes(self.api.certificate.read_bytes())
        write_keys(self.directory / "keys", self.keys)
        (self.directory / "config.json").write_text(json.dumps(config))

    def start(self) -> None:
        """Start a process, and wait until it answers."""
        address = urlsplit(self.api.url)
        directories = [str(self.directory / name) for name in ("config.json", "keys")]
        account = str(self.directory / "account")
        self.log = (self.directory / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, account, str(self.port), *directories],
            env={
                **os.environ,
                **self.store.environment,
                "KUBERNETES_SERVICE_HOST": str(address.hostname),
                "KUBERNETES_SERVICE_PORT": str(address.port),
            },
            stdout=self.log,
            stderr=self.log,
        )
        wait_until(self._answers, "the batch service")

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            answer = urllib3.request("GET", f"{self.url}/healthz", retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill the process as the kernel would."""
        self.process.kill()
        self.process.wait()
        self.log.close()

    def client(self, namespace: str) -> OpenAI:
        """Return a client that repeats requests while the service is started again."""
        return OpenAI(api_key=self.keys[namespace], base_url=f"{self.url}/v1", max_retries=8)
