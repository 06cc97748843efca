"""The parts of Azure Blob Storage that file access needs.

Start it with `python -m support.servers.azure_storage`."""

from __future__ import annotations

import re
from typing import Any
from xml.sax.saxutils import escape

from support.servers.cloud_server import CloudHandler, serve, version_of

DATE = "Sat, 21 Nov 2026 10:00:00 GMT"


class AzureHandler(CloudHandler):
    """Serves Azure Blob Storage. As in emulators, paths begin with the account name."""

    def name(self) -> str:
        return self.decoded_path.split("/", 2)[2]

    def missing(self) -> None:
        self.answer(404, {"x-ms-error-code": "BlobNotFound", "x-ms-request-id": "1"})

    def properties(self, content: bytes) -> dict[str, Any]:
        return {
            "Last-Modified": DATE,
            "ETag": f'"{version_of(content)}"',
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
        elif (content := self.state.objects.get(self.name())) is not None:
            self.answer(200, {**self.properties(content), "Content-Length": len(content)})
        else:
            self.missing()

    def serve_get(self) -> None:
        if self.query.get("comp") == "list":
            self.list()
        elif (content := self.state.objects.get(self.name())) is not None:
            self.answer_object(content, self.properties(content))
        else:
            self.missing()

    def list(self) -> None:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        blobs, folders = [], {}
        for name, content in self.state.below(self.name(), prefix).items():
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                folders[f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>"] = None
            else:
                blobs.append(
                    f"<Blob><Name>{escape(name)}</Name><Properties>"
                    f"<Creation-Time>{DATE}</Creation-Time><Last-Modified>{DATE}</Last-Modified>"
                    f"<Etag>1</Etag><Content-Length>{len(content)}</Content-Length>"
                    "<Content-Type>application/octet-stream</Content-Type>"
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
        if self.headers.get("If-None-Match") == "*" and name in self.state.objects:
            self.answer(409, {"x-ms-error-code": "BlobAlreadyExists", "x-ms-request-id": "1"})
            return
        if (version := self.headers.get("If-Match")) is not None:
            stored = self.state.objects.get(name)
            if stored is None or version != f'"{version_of(stored)}"':
                self.answer(412, {"x-ms-error-code": "ConditionNotMet", "x-ms-request-id": "1"})
                return
        if self.query.get("comp") == "block":
            self.state.pending_uploads[f"{name} {self.query['blockid']}"] = self.body
        elif self.query.get("comp") == "blocklist":
            blocks = re.findall(r"<(?:Latest|Uncommitted)>(.*?)</", self.body.decode())
            self.state.objects[name] = b"".join(
                self.state.pending_uploads[f"{name} {block}"] for block in blocks
            )
        else:
            self.state.objects[name] = self.body
        self.answer(201, {**done, "x-ms-request-server-encrypted": "true", "Date": DATE})

    def lease(self, headers: dict[str, Any]) -> None:
        if self.name() not in self.state.objects:
            self.missing()
        else:
            headers |= {"x-ms-lease-id": self.headers.get("x-ms-proposed-lease-id", "1")}
            released = self.headers.get("x-ms-lease-action") == "release"
            self.answer(200 if released else 201, {**headers, "x-ms-lease-time": "0", "Date": DATE})

    def serve_delete(self) -> None:
        if self.state.objects.pop(self.name(), None) is None:
            self.missing()
        else:
            self.answer(202, {"x-ms-request-id": "1", "Date": DATE})


if __name__ == "__main__":
    serve(AzureHandler)
