"""Addresses: local paths and object stores."""

from __future__ import annotations

import pytest

from batchinference.spec.addresses import is_local, local_path, scheme_of
from support.documents.refusals import accepted_at, refused_at

LOCAL = {
    "data/texts": "data/texts",
    "./data": "./data",
    "/data/a b/é.txt": "/data/a b/é.txt",
    "~/data": "~/data",
    "file:///data": "/data",
    "FILE:///data": "/data",
    "data/*.png": "data/*.png",
    "a:b/c": "a:b/c",
    "C:/data": "C:/data",
    "://": "://",
}
"""Addresses on this machine, and the local path of each."""
REMOTE = {
    "s3://bucket": "s3",
    "s3://bucket/": "s3",
    "s3://bucket/a/b/*.parquet": "s3",
    "S3://bucket/a": "s3",
    "gs://bucket/a@b:c": "gs",
    "az://container/a/*": "az",
}
"""Addresses in object stores, and the scheme of each."""
FIELDS_WITH_ADDRESS = ["spec.read.paths.0", "spec.write.path", "spec.errors.path"]


def test_local_address_yields_its_path() -> None:
    for uri, path in LOCAL.items():
        assert (is_local(uri), scheme_of(uri), local_path(uri)) == (True, "file", path)


def test_object_store_address_yields_its_scheme() -> None:
    for uri, scheme in REMOTE.items():
        assert (is_local(uri), scheme_of(uri)) == (False, scheme), uri


@pytest.mark.parametrize("keys", FIELDS_WITH_ADDRESS)
def test_address_is_accepted_unchanged(keys: str) -> None:
    for uri in (*LOCAL, *REMOTE, "a" * 1024):
        spec = accepted_at(keys, uri).spec
        assert uri in (spec.read.paths[0], spec.write.path, spec.errors.path)
    assert ", got 1025" in refused_at(keys, "a" * 1025)
