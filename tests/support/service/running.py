"""A running service, and clients with keys of two namespaces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI
from openai.types import Batch

from batchinference.service.api_keys import Keys
from batchinference.service.cluster_client import Kubernetes
from batchinference.service.config import BatchModel, ServiceConfig
from batchinference.service.server import Service
from batchinference.service.uploads import LIMITS, UploadLimits
from support.service.cluster import FakeCluster

KEYS = {"team-a": "key-of-team-a-5d1c", "team-b": "key-of-team-b-77e0"}
ENDPOINT = "/v1/chat/completions"
FAILING_ROW = 9
ANSWER = {"name": "answer", "python": {"callable": f"{__name__}:answer"}}
MODELS = [
    BatchModel(name="small", spec={"steps": [ANSWER]}),
    BatchModel(
        name="failing",
        spec={
            "steps": [
                {"name": "fail", "batchSize": 1, "python": {"callable": f"{__name__}:fail_late"}},
                ANSWER,
            ],
            "errors": {"maxRows": 0},
        },
    ),
    BatchModel(name="large", namespaces=["team-b"], spec={"steps": [ANSWER]}),
]


@dataclass
class Running:
    """A service at an address, and the cluster and the directory with its state."""

    url: str
    cluster: FakeCluster
    root: Path
    clients: list[AsyncOpenAI] = field(default_factory=list)

    def client(self, namespace: str = "team-a", **options: Any) -> AsyncOpenAI:
        """Return a client with the key of a namespace."""
        given = {"api_key": KEYS[namespace], "max_retries": 0, **options}
        self.clients.append(AsyncOpenAI(base_url=f"{self.url}/v1", **given))
        return self.clients[-1]

    async def upload(self, content: bytes | None = None, **fields: Any) -> Any:
        """Upload a file, and return the fields of a request for a batch over it."""
        sent = ("a.jsonl", requests(2) if content is None else content)
        file = await self.client().files.create(file=sent, purpose="batch", **fields)
        return {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h"}

    async def create(self, content: bytes | None = None, **options: Any) -> Batch:
        """Upload a file and return a new batch over it."""
        return await self.client().batches.create(**{**await self.upload(content), **options})

    def objects(self) -> list[str]:
        """Return the paths of all stored files."""
        return [str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file()]


def write_keys(directory: Path, keys: dict[str, str]) -> Keys:
    """Write the hashes of keys by namespace as Kubernetes mounts a Secret."""
    directory.mkdir(exist_ok=True)
    for namespace, key in keys.items():
        hashed = hashlib.sha256(key.encode()).hexdigest()
        (directory / f"{namespace}.first").write_text(hashed + "\n")
    return Keys(directory)


@asynccontextmanager
async def running(
    directory: Path, cluster: FakeCluster, limits: UploadLimits = LIMITS, **settings: Any
) -> AsyncIterator[Running]:
    """Run a service whose store is a local directory."""
    config = ServiceConfig(**{"path": str(directory / "store"), "models": MODELS, **settings})
    async with TestServer(cluster.application(), host="127.0.0.1") as api:
        kubernetes = Kubernetes(str(api.make_url("")).rstrip("/"), lambda: "token-of-the-pod\n")
        service = Service(config, write_keys(directory / "keys", KEYS), kubernetes, limits)
        async with TestServer(service.application(), host="127.0.0.1") as server:
            url = str(server.make_url("")).rstrip("/")
            result = Running(url, cluster, directory / "store")
            yield result
            for client in result.clients:
                await client.close()
        await kubernetes.close()


def answer(batch: dict[str, Any]) -> dict[str, Any]:
    """Add the response of a model."""
    return {**batch, "response": ['{"choices": []}' for _ in batch["custom_id"]]}


def fail_late(batch: dict[str, Any]) -> dict[str, Any]:
    """Fail at the row FAILING_ROW."""
    if f"row-{FAILING_ROW}" in batch["custom_id"]:
        raise ValueError("an error")
    return batch


def request_line(number: int, **changes: Any) -> str:
    """Return a line of an input file."""
    body = {"model": "small", "messages": [{"role": "user", "content": f"question {number}"}]}
    line = {"custom_id": f"row-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps({**line, **changes})


def requests(count: int, model: str = "small") -> bytes:
    """Return the content of an input file."""
    lines = "".join(request_line(number) + "\n" for number in range(count))
    return lines.replace('"small"', f'"{model}"').encode()
