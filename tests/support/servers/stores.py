"""Stores on loopback that misbehave as a test says: the parts of the HTTP APIs of Qdrant and
OpenSearch that the clients of these outputs use.

Real servers do not run in the tests. Behind the API of Qdrant is the local mode of its client, with
the same collections, filters and checks of points. OpenSearch is a model of documents with external
versions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from qdrant_client import QdrantClient, models

from support.outputs.rows import Row
from support.servers.loopback import handled_by

Answer = tuple[int, Any]


@dataclass(frozen=True)
class Call:
    """A request that a store has received."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]

    @property
    def writes(self) -> bool:
        """Whether it changes what is stored."""
        return self.method == "PUT" or "_bulk" in self.path

    @property
    def writes_rows(self) -> bool:
        """Whether it puts rows, and no marks."""
        is_of_rows = self.path.endswith(("/points", "/_bulk"))
        return self.writes and is_of_rows and "batchinference_commits" not in self.path


Fault = Callable[[Call], Answer | None]
"""Returns what a store answers instead of doing what a call says. The status 0 drops the
connection, and -1 drops it after the call is done."""


@dataclass
class Store:
    """A store. `fault` decides about each call. `name` is the collection with the rows."""

    name: str = "rows"
    port: int = 0
    calls: list[Call] = field(default_factory=list)
    fault: Fault = lambda call: None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, call: Call) -> Answer:
        raise NotImplementedError

    def rows(self) -> list[Row]:
        """Return the rows of the collection."""
        raise NotImplementedError

    def remove(self, id_: Any) -> None:
        """Remove a row of the collection."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove all collections, and forget the calls."""
        raise NotImplementedError


@dataclass
class LocalQdrant(Store):
    """Qdrant's local mode behind its HTTP API."""

    version: ClassVar[str] = "1.16.0"

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls.clear()
        self.local = QdrantClient(":memory:", force_disable_check_same_thread=True)

    def answer(self, call: Call) -> Answer:
        if call.path == "/":
            return 200, {"title": "qdrant", "version": self.version}
        _, _, name, *rest = call.path.split("/")
        if rest == ["points"] and not self.local.collection_exists(name):
            return 404, {"status": {"error": f"Not found: Collection `{name}` doesn't exist!"}}
        try:
            result = self._result(call, name, rest)
        except ValueError as error:
            return 400, {"status": {"error": f"Wrong input: {error}"}}
        return 200, {"result": result, "status": "ok", "time": 0}

    def _result(self, call: Call, name: str, rest: list[str]) -> Any:
        body, local = call.body, self.local
        match call.method, rest:
            case "GET", ["exists"]:
                return {"exists": local.collection_exists(name)}
            case "GET", []:
                return json.loads(local.get_collection(name).model_dump_json())
            case "PUT", []:
                made = models.CreateCollection.model_validate(body)
                return local.create_collection(name, made.vectors)
            case "PUT", ["points"]:
                points = models.PointsList.model_validate(body)
                local.upsert(name, points.points, update_filter=points.update_filter)
                return {"operation_id": 0, "status": "completed"}
            case "POST", ["points"]:
                batch = local.retrieve(name, body["ids"], body["with_payload"])
                return [json.loads(one.model_dump_json()) for one in batch]
            case "POST", ["points", "scroll"]:
                batch, _ = local.scroll(name, limit=body["limit"], with_vectors=True)
                return {"points": [json.loads(one.model_dump_json()) for one in batch]}
        raise AssertionError(call)

    def rows(self) -> list[Row]:
        if not self.local.collection_exists(self.name):
            return []
        scroll, _ = self.local.scroll(self.name, limit=10_000, with_vectors=True)
        return [{"_id": one.id, **(one.payload or {}), "vector": one.vector} for one in scroll]

    def remove(self, id_: Any) -> None:
        self.local.delete(self.name, [id_])


@dataclass
class FakeOpensearch(Store):
    """Indexes of documents with external versions."""

    mappings: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, dict[str, Row]] = field(default_factory=dict)
    refused: Callable[[Row], Answer | None] = lambda document: None

    def answer(self, call: Call) -> Answer:
        _, name, kind, *_ = [*call.path.split("/"), ""]
        if call.method == "HEAD":
            return (200 if name in self.mappings else 404), None
        answers = {"_mapping": self._mapping, "": self._create, "_bulk": self._bulk}
        answers |= {"_mget": self._mget, "_refresh": lambda *_: (200, {}), "scroll": self._scroll}
        if kind == "_search":
            return self._search(name, int((call.body | call.query)["size"]))
        return answers[kind](name, call.body)

    def _mapping(self, name: str, _: Any) -> Answer:
        if name not in self.mappings:
            return 404, {"error": {"type": "index_not_found_exception"}, "status": 404}
        return 200, {name: {"mappings": self.mappings[name]}}

    def _create(self, name: str, body: Any) -> Answer:
        self.mappings[name], self.documents[name] = body.get("mappings", {}), {}
        return 200, {"acknowledged": True}

    def _bulk(self, name: str, body: Any) -> Answer:
        lines = iter(body)
        items = [{"index": self._put(name, line["index"], next(lines))} for line in lines]
        return 200, {"errors": any("error" in one["index"] for one in items), "items": items}

    def _mget(self, name: str, body: Any) -> Answer:
        known = self.documents.get(name, {})
        none = {"found": False}
        result = [{"_id": id_, **known.get(id_, none)} for id_ in body["ids"]]
        return 200, {"docs": [{"found": True, **one} for one in result]}

    def _search(self, name: str, size: int) -> Answer:
        if size > 10_000:
            return 400, {"error": {"type": "illegal_argument_exception"}, "status": 400}
        return self._scroll(name, {"scroll_id": f"{name} 0 {size}"})

    def _scroll(self, _: str, body: Any) -> Answer:
        if isinstance(body["scroll_id"], list):  # the client ends the scroll
            return 200, {}
        name, begin, size = body["scroll_id"].split()
        end = int(begin) + int(size)
        hits = list(self.documents[name].values())[int(begin) : end]
        about = {"_scroll_id": f"{name} {end} {size}", "_shards": {"total": 1, "successful": 1}}
        return 200, {**about, "hits": {"hits": hits}}

    def _put(self, name: str, action: Row, document: Row) -> Row:
        known, id_ = self.documents.setdefault(name, {}), action["_id"]
        if answer := self.refused(document):
            return {"_id": id_, "status": answer[0], "error": answer[1]}
        if id_ in known and action["version"] < known[id_]["_version"]:
            return {"_id": id_, "status": 409, "error": {"type": "version_conflict"}}
        known[id_] = {"_id": id_, "_version": action["version"], "_source": document}
        return {"_id": id_, "status": 201}

    def rows(self) -> list[Row]:
        values = self.documents.get(self.name, {}).values()
        return [{"_id": one["_id"], **one["_source"]} for one in values]

    def remove(self, id_: Any) -> None:
        del self.documents[self.name][id_]

    def clear(self) -> None:
        for content in (self.calls, self.mappings, self.documents):
            content.clear()


def _parsed(content: bytes, path: str) -> Any:
    if "_bulk" in path:
        return [json.loads(line) for line in content.splitlines()]
    return json.loads(content) if content else None


@contextmanager
def stored_in(store: Store) -> Iterator[Store]:
    """Serve a store on loopback during the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            body = _parsed(content, url.path)
            call = Call(self.command, url.path, query, body, dict(self.headers))
            with store.lock:
                store.calls.append(call)
                answer = store.fault(call) or store.answer(call)
                if answer[0] == -1:
                    store.answer(call)
            self._send(*answer)

        def _send(self, status: int, body: Any) -> None:
            if status <= 0:
                self.close_connection = True
                return
            content = json.dumps(body).encode() if body is not None else b""
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    with handled_by(Handler) as store.port:
        yield store
