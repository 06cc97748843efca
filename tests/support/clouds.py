"""Small servers on the loopback that play Google Cloud Storage and Azure Blob Storage: as much of
their APIs as files need, with faults between."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

DATE = "Sat, 21 Nov 2026 10:00:00 GMT"


@dataclass
class Kept:
    """What a server keeps. `objects` has names with the bucket before them."""

    objects: dict[str, bytes] = field(default_factory=dict)
    under_way: dict[str, bytes] = field(default_factory=dict)
    failures: int = 0
    """How many of the next requests are answered with 503."""
    authorized: set[bool] = field(default_factory=set)
    """Whether requests had credentials."""
    requests: int = 0

    def below(self, bucket: str, prefix: str) -> dict[str, bytes]:
        """The objects of a bucket by their names in it."""
        cut = len(bucket) + 1
        names = sorted(name for name in self.objects if name.startswith(f"{bucket}/{prefix}"))
        return {name[cut:]: self.objects[name] for name in names}


@dataclass(frozen=True)
class Cloud:
    """A server that is up, in a process of its own: the libraries hold Python's lock while they
    wait for it."""

    url: str

    @property
    def objects(self) -> dict[str, bytes]:
        """All objects by bucket/key."""
        return {name: base64.b64decode(content) for name, content in self._state()[0].items()}

    @property
    def authorized(self) -> list[bool]:
        """Whether requests had credentials: of both kinds where they differ."""
        return sorted(self._state()[1])

    def put(self, name: str, content: bytes) -> None:
        self._control("put", name=name, content=base64.b64encode(content).decode())

    def fail(self, times: int) -> None:
        """Answer the next requests with 503."""
        self._control("fail", times=times)

    def requests(self) -> int:
        """How many requests came since this was asked last."""
        return int(self._control("requests"))

    def _state(self) -> Any:
        return self._control("state")

    def _control(self, word: str, **values: object) -> Any:
        request = Request(f"{self.url}/_control/{word}", json.dumps(values).encode())
        with urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kept: ClassVar[Kept] = Kept()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        self.place = unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.place.startswith("/_control/"):
            self._obey(self.place.removeprefix("/_control/"), json.loads(self.body))
            return
        self.kept.requests += 1
        self.kept.authorized.add("Authorization" in self.headers or "sig" in self.query)
        if self.kept.failures > 0:
            self.kept.failures -= 1
            self.answer(503, {"Retry-After": "0", "x-ms-request-id": "1"})
        else:
            getattr(self, f"serve_{self.command.lower()}")()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - http.server's names

    def _obey(self, word: str, values: dict[str, Any]) -> None:
        kept, result = self.kept, None
        match word:
            case "put":
                kept.objects[values["name"]] = base64.b64decode(values["content"])
            case "fail":
                kept.failures = values["times"]
            case "requests":
                result, kept.requests = kept.requests, 0
            case "state":
                contents = kept.objects.items()
                encoded = {name: base64.b64encode(content).decode() for name, content in contents}
                result = [encoded, list(kept.authorized)]
        self.answer(200, {}, json.dumps(result).encode())

    def answer(self, status: int, headers: dict[str, Any], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_object(self, content: bytes, headers: dict[str, Any]) -> None:
        """An object, or the range of it that is asked for."""
        asked = self.headers.get("x-ms-range") or self.headers.get("Range")
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        if match is None or not content:
            self.answer(200, headers, content)
            return
        first, last = int(match[1]), min(int(match[2] or len(content)), len(content) - 1)
        span = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self.answer(206, {**headers, **span}, content[first : last + 1])


class GoogleHandler(_Handler):
    def resource(self, name: str) -> dict[str, Any]:
        bucket, _, key = name.partition("/")
        size = len(self.kept.objects[name])
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": bucket,
            "size": str(size),
            "generation": "1",
            "metageneration": "1",
            "timeCreated": "2026-11-21T10:00:00Z",
            "updated": "2026-11-21T10:00:00Z",
        }

    def json(self, value: Any) -> None:
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def missing(self) -> None:
        self.answer(404, {"Content-Type": "application/json"}, b'{"error": {"code": 404}}')

    def name(self) -> str:
        match = re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.*)", self.place)
        return f"{match[1]}/{match[2]}" if match else ""

    def serve_get(self) -> None:
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)/o", self.place):
            prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
            names = self.kept.below(match[1], prefix)
            deep = [name for name in names if delimiter and delimiter in name[len(prefix) :]]
            items = [self.resource(f"{match[1]}/{name}") for name in names if name not in deep]
            ends = {name: name.index("/", len(prefix)) + 1 for name in deep}
            prefixes = sorted({name[:end] for name, end in ends.items()})
            self.json({"kind": "storage#objects", "items": items, "prefixes": prefixes})
        elif match := re.fullmatch(r"/storage/v1/b/([^/]+)", self.place):
            self.json({"kind": "storage#bucket", "name": match[1]})
        elif self.name() not in self.kept.objects:
            self.missing()
        elif self.query.get("alt") == "media":
            self.answer_object(self.kept.objects[self.name()], {"x-goog-generation": "1"})
        else:
            self.json(self.resource(self.name()))

    def serve_post(self) -> None:
        match = re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", self.place)
        assert match is not None
        session = f"{match[1]}/{self.query['name']}"
        self.kept.under_way[session] = b""
        self.answer(200, {"Location": f"http://{self.headers['Host']}/session/{quote(session)}"})

    def serve_put(self) -> None:
        session = self.place.removeprefix("/session/")
        self.kept.under_way[session] += self.body
        if self.headers["Content-Range"].endswith("/*"):
            so_far = len(self.kept.under_way[session])
            self.answer(308, {"Range": f"bytes=0-{so_far - 1}"})
        else:
            self.kept.objects[session] = self.kept.under_way.pop(session)
            self.json(self.resource(session))

    def serve_delete(self) -> None:
        if self.kept.objects.pop(self.name(), None) is None:
            self.missing()
        else:
            self.answer(204, {})


class AzureHandler(_Handler):
    """Of the account whose name begins the path, as emulators have it."""

    def name(self) -> str:
        return self.place.split("/", 2)[2]

    def missing(self) -> None:
        self.answer(404, {"x-ms-error-code": "BlobNotFound", "x-ms-request-id": "1"})

    def properties(self, content: bytes) -> dict[str, Any]:
        return {
            "Last-Modified": DATE,
            "ETag": '"1"',
            "x-ms-creation-time": DATE,
            "x-ms-blob-type": "BlockBlob",
            "x-ms-lease-state": "available",
            "x-ms-lease-status": "unlocked",
            "x-ms-server-encrypted": "true",
            "x-ms-request-id": "1",
            "x-ms-version": self.headers.get("x-ms-version", "2023-11-03"),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "Content-MD5": "",
            "Date": DATE,
        }

    def serve_head(self) -> None:
        if self.query.get("restype") == "container" or "/" not in self.name():
            self.answer(200, {"Last-Modified": DATE, "ETag": '"1"', "x-ms-request-id": "1"})
        elif self.name() in self.kept.objects:
            content = self.kept.objects[self.name()]
            self.answer(200, {**self.properties(content), "Content-Length": len(content)})
        else:
            self.missing()

    def serve_get(self) -> None:
        if self.query.get("comp") == "list":
            self.list()
        elif self.name() in self.kept.objects:
            content = self.kept.objects[self.name()]
            self.answer_object(content, self.properties(content))
        else:
            self.missing()

    def list(self) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        blobs, folders = [], {}
        for name, content in self.kept.below(self.name(), prefix).items():
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                folders[f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>"] = None
            else:
                blobs.append(
                    f"<Blob><Name>{escape(name)}</Name><Properties>"
                    f"<Creation-Time>{DATE}</Creation-Time><Last-Modified>{DATE}</Last-Modified>"
                    f"<Etag>1</Etag><Content-Length>{len(content)}</Content-Length>"
                    "<BlobType>BlockBlob</BlobType></Properties></Blob>"
                )
        listed = "".join([*blobs, *folders])
        xml = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults>'
            f"<Blobs>{listed}</Blobs><NextMarker /></EnumerationResults>"
        )
        headers = {"Content-Type": "application/xml", "x-ms-request-id": "1"}
        self.answer(200, headers, xml.encode())

    def serve_put(self) -> None:
        name, done = self.name(), {"ETag": '"1"', "Last-Modified": DATE, "x-ms-request-id": "1"}
        if self.query.get("comp") == "lease":
            self.lease(done)
            return
        if self.query.get("comp") == "block":
            self.kept.under_way[f"{name} {self.query['blockid']}"] = self.body
        elif self.query.get("comp") == "blocklist":
            blocks = re.findall(r"<(?:Latest|Uncommitted)>(.*?)</", self.body.decode())
            self.kept.objects[name] = b"".join(
                self.kept.under_way[f"{name} {block}"] for block in blocks
            )
        else:
            self.kept.objects[name] = self.body
        self.answer(201, {**done, "x-ms-request-server-encrypted": "true", "Date": DATE})

    def lease(self, headers: dict[str, Any]) -> None:
        if self.name() not in self.kept.objects:
            self.missing()
        else:
            headers |= {"x-ms-lease-id": self.headers.get("x-ms-proposed-lease-id", "1")}
            released = self.headers.get("x-ms-lease-action") == "release"
            self.answer(200 if released else 201, {**headers, "x-ms-lease-time": "0", "Date": DATE})

    def serve_delete(self) -> None:
        if self.kept.objects.pop(self.name(), None) is None:
            self.missing()
        else:
            self.answer(202, {"x-ms-request-id": "1", "Date": DATE})


ACCOUNT, ACCOUNT_KEY = "account", base64.b64encode(b"a key of the tests 2718").decode()


@contextmanager
def served(kind: str) -> Iterator[Cloud]:
    """A server that plays `google` or `azure`."""
    process = subprocess.Popen(
        [sys.executable, __file__, kind], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield Cloud(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.terminate()
        process.communicate()


if __name__ == "__main__":
    handler = {"google": GoogleHandler, "azure": AzureHandler}[sys.argv[1]]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
