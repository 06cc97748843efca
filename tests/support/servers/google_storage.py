"""The parts of Google Cloud Storage that file access needs.

Start it with `python -m support.servers.google_storage`."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from support.servers.cloud_server import CloudHandler, serve, version_of


class GoogleHandler(CloudHandler):
    @staticmethod
    def xml_headers(content: bytes) -> dict[str, str]:
        return {
            "ETag": '"1"',
            "Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT",
            "x-goog-generation": version_of(content),
        }

    def resource(self, name: str, content: bytes) -> dict[str, Any]:
        bucket, _, key = name.partition("/")
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": bucket,
            "size": str(len(content)),
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
        match = re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o/(.*)", self.decoded_path)
        return f"{match[1]}/{match[2]}" if match else ""

    def serve_get(self) -> None:
        if match := re.fullmatch(r"/storage/v1/b/([^/]+)/o", self.decoded_path):
            prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
            below = self.state.below(match[1], prefix)
            deep = [name for name in below if delimiter and delimiter in name[len(prefix) :]]
            flat = [(name, content) for name, content in below.items() if name not in deep]
            items = [self.resource(f"{match[1]}/{name}", content) for name, content in flat]
            ends = {name: name.index("/", len(prefix)) + 1 for name in deep}
            prefixes = sorted({name[:end] for name, end in ends.items()})
            self.json({"kind": "storage#objects", "items": items, "prefixes": prefixes})
        elif match := re.fullmatch(r"/storage/v1/b/([^/]+)", self.decoded_path):
            self.json({"kind": "storage#bucket", "name": match[1]})
        elif "list-type" in self.query:
            self.list()
        elif (content := self.state.objects.get(self.decoded_path[1:])) is not None:
            self.answer_object(content, self.xml_headers(content))
        elif (content := self.state.objects.get(self.name())) is None:
            self.missing()
        elif self.query.get("alt") == "media":
            self.answer_object(content, {"x-goog-generation": "1"})
        else:
            self.json(self.resource(self.name(), content))

    def serve_post(self) -> None:
        match = re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", self.decoded_path)
        assert match is not None
        session = f"{match[1]}/{self.query['name']}"
        self.state.pending_uploads[session] = b""
        self.answer(200, {"Location": f"http://{self.headers['Host']}/session/{quote(session)}"})

    def list(self) -> None:
        """List a bucket's objects as S3 does. Google Cloud Storage also offers this XML API."""
        bucket, prefix = self.decoded_path.strip("/"), self.query.get("prefix", "")
        result, folders = [], {}
        for name, content in self.state.below(bucket, prefix).items():
            folder, cut, _ = name[len(prefix) :].partition(self.query.get("delimiter") or "\0")
            if cut:
                folders[f"<Prefix>{escape(prefix + folder + cut)}</Prefix>"] = None
            elif name > self.query.get("start-after", ""):
                result.append(
                    f"<Contents><Key>{escape(name)}</Key><Size>{len(content)}</Size>"
                    "<LastModified>2026-11-21T10:00:00.000Z</LastModified><ETag>1</ETag></Contents>"
                )
        common = f"<CommonPrefixes>{''.join(folders)}</CommonPrefixes>" * bool(folders)
        xml = f"<ListBucketResult>{''.join(result)}{common}</ListBucketResult>"
        self.answer(200, {"Content-Type": "application/xml"}, xml.encode())

    def serve_head(self) -> None:
        content = self.state.objects.get(self.decoded_path[1:])
        if content is None:
            self.missing()
        else:
            self.answer(200, {**self.xml_headers(content), "Content-Length": len(content)})

    def put_object(self) -> None:
        name, wanted = self.decoded_path[1:], self.headers.get("x-goog-if-generation-match")
        stored = self.state.objects.get(name)
        if wanted not in (None, "0" if stored is None else version_of(stored)):
            self.answer(412, {})
        else:
            self.state.objects[name] = self.body
            self.answer(200, self.xml_headers(self.body))

    def serve_put(self) -> None:
        if not self.decoded_path.startswith("/session/"):
            self.put_object()
            return
        session = self.decoded_path.removeprefix("/session/")
        self.state.pending_uploads[session] += self.body
        if self.headers["Content-Range"].endswith("/*"):
            so_far = len(self.state.pending_uploads[session])
            self.answer(308, {"Range": f"bytes=0-{so_far - 1}"})
        else:
            content = self.state.objects[session] = self.state.pending_uploads.pop(session)
            self.json(self.resource(session, content))

    def serve_delete(self) -> None:
        if self.state.objects.pop(self.name() or self.decoded_path[1:], None) is None:
            self.missing()
        else:
            self.answer(204, {})


if __name__ == "__main__":
    serve(GoogleHandler)
