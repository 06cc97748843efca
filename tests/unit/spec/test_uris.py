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


@pytest.mark.parametrize("place", FIELDS_WITH_ADDRESS)
def test_address_is_accepted_unchanged(place: str) -> None:
    for uri in (*LOCAL, *REMOTE, "a" * 1024):
        spec = accepted_at(place, uri).spec
        assert uri in (spec.read.paths[0], spec.write.path, spec.errors.path)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("gcs://bucket/a", "the scheme 'gcs://' is not supported, got 'gcs://bucket/a'. Use a "
         "path or one of file://, s3://, gs://, az://"),
        ("s3a://bucket/a", "the scheme 's3a://' is not supported"),
        ("HTTPS://host/a", "the scheme 'https://' is not supported"),
        ("hdfs+x.y-z://a", "the scheme 'hdfs+x.y-z://' is not supported"),
        ("s3://", "an address with s3:// needs a bucket"),
        ("S3://", "an address with s3:// needs a bucket"),
        ("s3:///key", "an address with s3:// needs a bucket"),
        ("gs://", "an address with gs:// needs a bucket"),
        ("az:///key", "an address with az:// needs a bucket"),
        ("gs:/bucket/a", "an address begins with 'gs://'"),
        ("file://", "a file:// address needs a path"),
        ("s3:/bucket/a", "an address begins with 's3://'"),
        ("s3:bucket", "an address begins with 's3://'"),
        ("file:/data", "an address begins with 'file://'"),
        ("a\0b", "an address must not contain control characters"),
        ("s3://bucket/a\n", "an address must not contain control characters"),
        ("a\x1b[2J", "an address must not contain control characters"),
        ("", "expected at least 1 character"),
        ("a" * 1025, "expected at most 1024 characters"),
    ],
)  # fmt: skip
def test_address_is_refused(uri: str, message: str) -> None:
    for place in FIELDS_WITH_ADDRESS:
        found = refused_at(place, uri)
        assert found.startswith(f"{place.replace('.0', '[0]')}: {message}")
        shown = "1025" if len(uri) > 1024 else f"'{uri[:3].encode('unicode_escape').decode()}"
        assert f", got {shown}" in found


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "https"])
def test_address_with_credentials_is_refused_and_not_shown(scheme: str) -> None:
    for place in FIELDS_WITH_ADDRESS:
        found = refused_at(place, f"{scheme}://user:hunter2@bucket/a")
        path = place.replace(".0", "[0]")
        message = (
            "must not contain credentials, got a text (not shown). Set them in the environment"
        )
        assert found == f"{path}: {message}"
