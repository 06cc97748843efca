"""Google Cloud Storage, as much of its API as files need: `python -m support.google_storage`."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from support.cloud_server import CloudHandler, serve


class GoogleHandler(CloudHandler):
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


if __name__ == "__main__":
    serve(GoogleHandler)
