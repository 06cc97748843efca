"""A real S3 server on loopback: versitygw, which keeps objects as plain files."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil
from botocore.config import Config

from support.engines import program
from support.jobs.command import wait_until
from support.servers.ports import free_port

HOW_TO_GET_IT = (
    "take it from https://github.com/versity/versitygw/releases or run "
    "`go install github.com/versity/versitygw/cmd/versitygw@latest`"
)
STARTS = 3
ACCESS_KEY, SECRET_KEY = "access-key-of-the-tests", "secret-key-of-the-tests-3141"


@dataclass(frozen=True)
class S3Server:
    """A running S3 server. `directory` contains a folder for each bucket."""

    endpoint: str
    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a program needs to use the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """Return a boto3 client, which is independent of the product's code."""
        return _client(self.endpoint)

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        for key, content in objects.items():
            self.client().put_object(Bucket=bucket, Key=key, Body=content)

    def objects(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """Return the objects below a prefix, without directory markers."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return {
            key: client.get_object(Bucket=bucket, Key=key)["Body"].read()
            for key in keys
            if not key.endswith("/")
        }


@functools.cache
def _client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


@contextmanager
def s3_server(directory: Path, log: Path | None = None) -> Iterator[S3Server]:
    """Run a server that stores its buckets in a directory and logs its requests to a file. Skip if
    the program is missing."""
    process, port = _start(directory, log)
    try:
        yield S3Server(f"http://127.0.0.1:{port}", directory)
    finally:
        process.terminate()
        process.communicate()


def _start(
    directory: Path, log: Path | None, starts: int = STARTS
) -> tuple[subprocess.Popen[str], int]:
    """Start a server, again if it does not listen. Return its process and its port."""
    port = free_port()
    command = [program("versitygw", HOW_TO_GET_IT), "--quiet", "--port", f"127.0.0.1:{port}"]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    if log is not None:
        command += ["--access-log", str(log)]
    process = subprocess.Popen(
        [*command, "--health", "/health", "posix", str(directory)],
        env={**os.environ, **keys},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: process.poll() is not None or _listens(process), "the S3 server")
        assert process.poll() is None, process.communicate()[1]
    except AssertionError as error:
        process.kill()
        if starts == 1:
            raise AssertionError(f"{error}: {process.communicate()[1]}") from error
        return _start(directory, log, starts - 1)
    return process, port


def _listens(process: subprocess.Popen[str]) -> bool:
    """Return whether the server itself accepts connections, and not another one on its port."""
    with suppress(psutil.NoSuchProcess):
        connections = psutil.Process(process.pid).net_connections("tcp")
        return any(one.status == psutil.CONN_LISTEN for one in connections)
    return False
