"""Resolves the argument of commands: the path of an output, or the name of a job on a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from batchinference.api.cluster_error import ClusterError
from batchinference.credentials import without_credentials
from batchinference.spec.addresses import expanded, is_local
from batchinference.spec.uri_fields import Uri

if TYPE_CHECKING:
    from batchinference.api.kubernetes import Kubernetes

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def check_address(text: str) -> None:
    """Raise ClusterError if a text cannot be the address of an output, or is a file."""
    if not text:
        raise ClusterError("the path of the output is empty. Pass the write.path of a job")
    # not Path.is_file, which raises OSError for a long name, or without permission
    if text.endswith((".yaml", ".yml")) and os.path.isfile(text):
        raise ClusterError(f"'{text}' is a job's file. Pass its output: the write.path in it")
    try:
        TypeAdapter(Uri).validate_python(text)
    except ValidationError as error:
        raise ClusterError(f"'{text}': {error.errors()[0]['msg']}") from None
    if is_local(text) and os.path.isfile(expanded(text)):
        raise ClusterError(f"'{text}' is a file. Pass the directory of an output")


@dataclass(frozen=True)
class Target:
    """The path of an output, or the name of a job on a cluster."""

    text: str
    namespace: str | None = None
    context: str | None = None

    @property
    def is_on_cluster(self) -> bool:
        """Whether a namespace or a context is given."""
        return self.namespace is not None or self.context is not None

    @property
    def is_job(self) -> bool:
        """Whether this is the name of a job. With a namespace or a context, it always is. Other
        texts are names if they do not look like a path, and no such path exists."""
        if self.is_on_cluster:
            return True
        is_path = "/" in self.text or self.text.startswith((".", "~")) or not self.text
        return not (is_path or os.path.exists(self.text))

    def cluster(self) -> Kubernetes:
        """Return a client for the cluster. Raises ClusterError."""
        from batchinference.api.kubernetes import Kubernetes  # slow, and paths do not need it

        try:
            return Kubernetes(self.namespace, self.context)
        except ClusterError as error:
            if self.is_on_cluster:
                raise
            raise ClusterError(
                f"'{self.text}' is no file or directory here. If it is a job on a cluster: {error}"
            ) from None

    def output(self) -> str:
        """Return the path of the output. For a job, ask the cluster. Raises ClusterError."""
        if not self.is_job:
            check_address(self.text)
            return str(expanded(self.text)) if is_local(self.text) else self.text
        from batchinference.api.jobs_on_cluster import JobStatus

        return JobStatus.of(self.cluster().get(self.text)).output

    def missing_endpoint(self) -> str:
        """Return a variable of the pods of a job that this process lacks: the address of the object
        store, as NAME=VALUE. Return "" if there is none, or for a path. Raises ClusterError."""
        if not self.is_job:
            return ""
        env = self.cluster().get(self.text)["spec"].get("cluster", {}).get("env", [])
        values = {one["name"]: one.get("value") for one in env}
        names = [name for name in _ENDPOINTS if values.get(name)]
        if not names or names[0] in os.environ:
            return ""
        return f"{names[0]}={without_credentials(values[names[0]])}"
