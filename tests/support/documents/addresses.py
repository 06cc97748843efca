"""Each field with an address, and addresses with and without credentials."""

from __future__ import annotations

from typing import Any

from support.documents.minimal import document
from support.documents.refusals import valid_documents
from support.documents.variations import changed, keys_of

Document = dict[str, Any]

CREDENTIALS: dict[str, list[str]] = {
    "files": [
        *("s3://key:hunter2@bucket/x", "S3://me@out/", "gs://key@bucket/x", "az://key@c/x"),
        *("s3a://key:hunter2@bucket/x", "s3n://key:hunter2@b", "gcs://me:hunter2@bucket/x"),
        *("https://me:hunter2@host/x", "https://hunter2@host/x", "hdfs://me:hunter2@node/x"),
        *("https://host/x?token=hunter2", "https://host/x?a=b&sig=hunter2"),
        *("https://bucket.s3.amazonaws.com/x?X-Amz-Signature=hunter2", "https://h/x?%73ig=hunter2"),
    ],
    "server": [
        *("https://me:hunter2@host/v1", "http://hunter2@host", "https://host/v1?key=hunter2"),
        *("https://host/v1?a=b&api_key=hunter2", "https://host/v1?code=hunter2"),
        *("https://host/v1?subscription-key=hunter2", "https://host/v1?X-Amz-Signature=hunter2"),
        *("https://host/v1?SAS=hunter2", "https://host/v1?access_token=hunter2"),
        *("https://host/v1?userpass=hunter2", "https://host/v1?Proxy-Authorization=hunter2"),
        *("https://host/v1?api%5Fkey=hunter2", "https://host/v1?a=b&%61pi%2Dkey=hunter2"),
        *("https://host/v1?upload_token=hunter2", "https://host/v1?sk-token=hunter2"),
        *("https://host/v1?task_token=hunter2", "https://host/v1?hf_token=hunter2"),
        *("https://host/v1?mytoken=hunter2", "https://host/v1?my%20token=hunter2"),
        *("https://host/v1?a=b&token=hunter2", "https://host/v1?pad_token=0&ad_token=hunter2"),
    ],
    "database": [
        *("http://me:hunter2@host/x", "http://host:80/x?password=hunter2"),
        *("http://me:hunter2/2@host/x", "http://host/x?a=b&access_token=hunter2"),
        *("http://host/x?private_key_passwd=hunter2", "http://host/x?user=u;PWD=hunter2"),
        "http://host/x?odbc_connect=SERVER%3Dh%3BUID%3Dme%3BPWD%3Dhunter2",
        *("http://host/x?dbpass=hunter2", "http://host/x?my%20password=hunter2"),
        *("http://host/x?private%5fkey=hunter2", "http://host/x?a=b;%50WD=hunter2"),
    ],
    "catalog": [
        *("postgresql://me:hunter2@host/x", "http://catalog:8181?token=hunter2"),
        "https://host/x?client_secret=hunter2",
    ],
    "prefix": ["https://me:hunter2@intranet.example/", "https://hunter2@intranet.example/"],
    "endpoint": ["https://me:hunter2@host/x", "https://host/x?sig=hunter2"],
}
"""By the kind of a field, addresses with credentials."""
HARMLESS: dict[str, list[str]] = {
    "files": [
        *("/data/a:b@c", "s3://bucket/a@b:c", "s3://bucket/a?.csv", "s3://bucket/a?token=b"),
        *("{{ params.path }}", "https://host/x.csv?author=me", "abfss://container@account/x"),
    ],
    "server": [
        *("https://host:8443/v1/@cf/model", "https://host/v1?api-version=2024-06-01"),
        *("https://host/v1?max_tokens=5&page=2", "https://host/v1?codec=a&keyword=b"),
        "https://host/v1?token_type=a&signature_version=4&compass=b&q=a%20secret%3Db",
        "https://host/v1?pad_token=0&EOS_TOKEN=1&mask-token=2&filter%5Bname%5D=a&q=%61=b",
    ],
    "database": ["http://me@host/x", "http://host:80/x?authSource=admin&sslmode=require"],
    "catalog": ["sqlite:////data/a:b.db", "http://catalog:8181", "s3://bucket/warehouse"],
    "prefix": ["https://intranet.example:8443/a@b:c/", "https://intranet.example"],
    "endpoint": ["https://host:9000/x"],
}
"""By the kind of a field, addresses without credentials. Some are not valid for other reasons."""
_CHUNK = {"column": "text", "size": 10, "unit": "tokens", "tokenizer": "org/model"}
_DOCUMENTS = {
    **valid_documents(),
    "chunk": document(steps=[{"name": "cut", "chunk": _CHUNK}]),
    "allow": valid_documents()["vllm"],
}
FIELDS: dict[tuple[str, str], str] = {
    ("full", "spec.read.paths.0"): "files",
    ("full", "spec.write.path"): "files",
    ("full", "spec.errors.path"): "files",
    ("read lance", "spec.read.path"): "files",
    ("reuse", "spec.steps.0.cache.path"): "files",
    ("model onnx", "spec.steps.0.model.source"): "files",
    ("vllm", "spec.steps.0.model.loraPath"): "files",
    ("chunk", "spec.steps.0.chunk.tokenizer"): "files",
    ("http chat", "spec.steps.0.model.url"): "server",
    ("read sql", "spec.read.url"): "database",
    ("write opensearch", "spec.write.url"): "database",
    ("read iceberg", "spec.read.catalog.properties.uri"): "catalog",
    ("write iceberg", "spec.write.catalog.properties.uri"): "catalog",
    ("read manifest", "spec.read.options.allow.0"): "prefix",
    ("vllm", "spec.steps.0.model.allow.0"): "prefix",
    ("read lance", "spec.read.storage.endpoint"): "endpoint",
    ("model onnx", "spec.steps.0.model.storage.endpoint"): "endpoint",
}
"""The kind of each field with an address, by a document with the field and its place in it."""


def with_address(document_name: str, keys: str, address: str) -> Document:
    """Return a document with another address in one place."""
    return changed(_DOCUMENTS[document_name], keys_of(keys), address)
