"""Specs that the API server stores and that a parser of Python cannot read."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from support.documents.minimal import document
from support.operator.simulated_ray_job import soon
from support.servers.api_server import TABLE, ApiServer, Namespace, new_namespace

ARRAYS, OBJECTS = ("[" * 9000 + "]" * 9000), ('{"a":' * 3000 + "0" + "}" * 3000)
DICTS = "[" + '{"":{"":0}},' * 30_000 + "0]"
HOSTILE = {"arrays": ARRAYS, "objects": OBJECTS, "dicts": DICTS}


def create(namespace: Namespace, name: str, value: str) -> None:
    """Create a job with a value that `json` cannot write. The answer is a table without values."""
    step = {"name": "hostile", "python": {"callable": "a:b", "callArgs": {"x": "VALUE"}}}
    body = json.dumps(document(name, steps=[step])).replace('"VALUE"', value).encode()
    path, accept = namespace.path("BatchInference"), {"Accept": TABLE}
    namespace.server.call("POST", path, body, headers=accept, includeObject="None")


def cells(namespace: Namespace, name: str) -> list[Any]:
    """Return what `kubectl get` shows of a job."""
    path, accept = namespace.path("BatchInference", name), {"Accept": TABLE}
    table = namespace.server.call("GET", path, headers=accept, includeObject="None")
    result: list[Any] = table["rows"][0]["cells"]
    return result


def is_refused(namespace: Namespace, name: str) -> bool:
    return "InvalidSpec" in cells(namespace, name)


def test_hostile_specs_are_refused_while_other_jobs_run(
    new_operator: Any, server: ApiServer, namespace: Namespace, job: Any
) -> None:
    """With a limit of concurrent jobs, the operator lists all jobs before it watches them."""
    hostile = new_namespace(server, f"{namespace.name}-hostile")
    for shape, value in HOSTILE.items():
        create(hostile, f"listed-{shape}", value)
    operator = new_operator(
        watchNamespaces=[hostile.name, namespace.name], concurrency={"maxRunningPerNamespace": 9}
    )
    operator.start()
    job("first").status("Starting")
    for shape, value in HOSTILE.items():
        create(hostile, f"watched-{shape}", value)
    for name in (f"{when}-{shape}" for when in ("listed", "watched") for shape in HOSTILE):
        soon(f"{name} is refused", partial(is_refused, hostile, name))
    job("second").status("Starting")
    assert operator.answers("/healthz") == 200
    assert "Traceback" not in operator.output()
