"""Creates, reads, lists and cancels batches. A batch is a BatchInference in the namespace of the
request's API key."""

import asyncio
import hashlib
import json
import re
import time
from http import HTTPStatus
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from batchinference.openai_urls import path_of
from batchinference.service.api_error import ApiError, bad_request, not_found, parse_request
from batchinference.service.batch_files import Files
from batchinference.service.batch_view import (
    ENDED,
    NOT_RUN,
    RECORD,
    Object,
    Record,
    as_batch,
    created_at_of,
    record_of,
    status_of,
)
from batchinference.service.cluster_client import Conflict, Kubernetes
from batchinference.service.config import ServiceConfig
from batchinference.service.line_check import FileCheck, LineError
from batchinference.service.list_pages import Pages
from batchinference.spec import API_VERSION, KIND
from batchinference.spec.durations import Duration
from batchinference.spec.job import CANCELLED_AT

NEVER_RUN = "batchinference.dev/batch-service"
"""The value of `managedBy` in the BatchInference of a batch whose file has errors. The operator
ignores objects with this value."""
MAX_RUNS = 1000
"""Maximum number of batches that equal requests create."""
RETRY_SECONDS = 3600
"""A repeated request without an idempotency key gets an ended batch only until this number of
seconds after the creation of the batch."""
_NAME = re.compile("batch-[0-9a-f]{32}")
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


def _with_version(endpoint: object) -> object:
    """Return an endpoint with `/v1`, which clients of Azure leave out."""
    path = path_of(endpoint)
    return endpoint if path is None else f"/v1{path}"


class BatchRequest(BaseModel):
    """The body of a request for a new batch."""

    model_config = ConfigDict(extra="forbid", strict=True)
    input_file_id: str
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"],
        BeforeValidator(_with_version),
    ]
    completion_window: Duration
    metadata: Annotated[dict[_Key, _Value], Field(max_length=16)] | None = None


class Batches:
    """The batches of a cluster. The first argument of methods is the namespace of the API key."""

    def __init__(self, config: ServiceConfig, files: Files, cluster: Kubernetes) -> None:
        self._config, self._files, self._cluster = config, files, cluster
        self._pages = Pages()

    async def create(
        self, namespace: str, body: bytes, key: str = "", *, repeated: bool = False
    ) -> Object:
        """Create a batch and return it. Raises ApiError.

        Clients repeat requests whose answers are lost. So an equal request returns the existing
        batch if it has not ended. An ended batch is returned if the request has an idempotency key
        `key`. It is also returned if the client says that it repeats the request (`repeated`), and
        the batch was created less than RETRY_SECONDS ago."""
        request = parse_request(BatchRequest, body)
        try:
            file = await self._files.get(namespace, request.input_file_id)
            check = await self._files.check(file)
        except ApiError as error:
            raise bad_request(str(error), "input_file_id") from None
        latest, name = await self._latest_and_next_name(namespace, request, key)
        if latest is not None:
            young = time.time() - created_at_of(latest) < RETRY_SECONDS
            if key or status_of(latest) not in ENDED or (repeated and young):
                return as_batch(latest)
        source = self._files.location(file.parts[0]["path"]).uri
        target = self._files.location(f"{namespace}/batches/{name}").uri
        self._add_mismatches(namespace, request, check)
        model = self._config.models_of(namespace).get(check.model or "")
        spec = self._config.spec_of(model, source, target, request.completion_window)
        document = _document(name, spec, request, check)
        try:
            return as_batch(await self._cluster.create(namespace, document))
        except Conflict:  # an equal request at the same time has created the batch
            return as_batch(await self._get(namespace, name))

    async def _latest_and_next_name(
        self, namespace: str, request: BatchRequest, key: str
    ) -> tuple[Object | None, str]:
        """Return the last batch for an equal request, or None, and the name for a new batch.

        A name is the prefix of its file, and a hash of the request, its key and a number. So two
        replicas of the service cannot create two batches for one request. A name is not used again
        if it has an output, even if its BatchInference was deleted."""
        prefix, latest = _name_prefix(request.input_file_id), None
        for number in range(MAX_RUNS):
            identity = json.dumps([request.model_dump(), key, number], sort_keys=True)
            name = f"{prefix}{hashlib.sha256(identity.encode()).hexdigest()[:20]}"
            job = await self._cluster.get(namespace, name)
            latest = job or latest
            if not job and not await self._files.objects(f"{namespace}/batches/{name}"):
                return latest, name
        raise bad_request(f"There are {MAX_RUNS} equal batches. Set other metadata", "metadata")

    def _add_mismatches(self, namespace: str, request: BatchRequest, check: FileCheck) -> None:
        """Add errors to the check of a file if its lines do not fit the request, or name a model
        that the namespace lacks."""
        if check.url and check.url != request.endpoint:
            message = f"url: {check.url} differs from the endpoint of the batch"
            check.add(LineError(code="invalid_url", message=message, line=1, param="url"))
        if check.model and check.model not in self._config.models_of(namespace):
            message = "body.model: this model does not exist. GET /v1/models lists the models"
            check.add(LineError(code="model_not_found", message=message, line=1))

    async def get(self, namespace: str, identifier: str) -> Object:
        """Return a batch. Raises ApiError."""
        return as_batch(await self._get(namespace, _name_of(identifier)))

    async def write_missing_error_file(self, namespace: str, file: str) -> None:
        """Write the error file with the id `file`, if it is missing and its batch has expired or
        was cancelled. Raises ApiError."""
        name = f"batch-{file.removeprefix('file-errors-')}"
        if not file.startswith("file-errors-") or not _NAME.fullmatch(name):
            return
        job = await self._cluster.get(namespace, name)
        record = job and record_of(job)
        if job and record and (ended := NOT_RUN.get(status_of(job))):
            message = f"This request could not be executed {ended[1]}."
            error = {"code": ended[0], "message": message}
            await self._files.write_error_file(namespace, name, record.input_file_id, error)

    async def _get(self, namespace: str, name: str) -> Object:
        job = await self._cluster.get(namespace, name)
        if job is None or record_of(job) is None:
            raise not_found("Batch object", name)
        return job

    async def cancel(self, namespace: str, identifier: str) -> Object:
        """Suspend the job of a batch, and return the batch. The job commits its finished lines and
        stops. Raises ApiError, for example if the batch has ended."""
        name = _name_of(identifier)
        job = await self._get(namespace, name)
        if (status := status_of(job)) in ENDED:
            message = f"Cannot cancel a batch with status '{status}'"
            raise ApiError(HTTPStatus.CONFLICT, message)
        if status == "cancelling":
            return as_batch(job)
        annotations = {CANCELLED_AT: str(int(time.time()))}
        change = {"metadata": {"annotations": annotations}, "spec": {"suspend": True}}
        try:
            return as_batch(await self._cluster.patch(namespace, name, change) or job)
        except Conflict:
            message = "The batch is being changed. Try again"
            raise ApiError(HTTPStatus.CONFLICT, message) from None

    async def is_file_in_use(self, namespace: str, file: str) -> bool:
        """Return whether a batch still needs an input file. The file is needed until the batch has
        ended. If the batch has expired or was cancelled before all lines succeeded, the file is
        needed until the error file is written. Raises ApiError."""
        names = [n for n in await self.names(namespace) if n.startswith(_name_prefix(file))]
        jobs = [job for name in names if (job := await self._cluster.get(namespace, name))]
        for job in jobs:
            if (record := record_of(job)) and record.input_file_id == file:
                status, name = status_of(job), job["metadata"]["name"]
                if status not in ENDED or (
                    status in NOT_RUN
                    and as_batch(job)["error_file_id"]
                    and not await self._files.has_error_file(namespace, name)
                ):
                    return True
        return False

    async def names(self, namespace: str) -> list[str]:
        """Return the names of the jobs of all batches, newest first. Raises ApiError."""
        known = await self._cluster.list_metadata(namespace, RECORD)
        known.sort(key=lambda each: (each["creationTimestamp"], each["name"]), reverse=True)
        return [each["name"] for each in known]

    async def list_newest(
        self, namespace: str, after: str | None, limit: int
    ) -> tuple[list[Object], bool]:
        """Return up to `limit` batches, newest first, and whether there are more. The list begins
        after the batch with the id `after`, or at the newest batch if `after` is None."""
        last = after and _name_of(after)
        names = await self._pages.after(namespace, lambda: self.names(namespace), last)
        jobs = await asyncio.gather(*(self._cluster.get(namespace, name) for name in names[:limit]))
        return [as_batch(each) for each in jobs if each and record_of(each)], len(names) > limit


def _document(name: str, spec: Object, request: BatchRequest, check: FileCheck) -> Object:
    """Return the BatchInference of a batch. The job never runs if the file has errors."""
    record = Record(**request.model_dump(), **check.model_dump(exclude={"url"}))
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "labels": {RECORD: "true"},
            "annotations": {RECORD: record.model_dump_json(exclude_defaults=True)},
        },
        "spec": {**spec, "managedBy": NEVER_RUN} if check.errors else spec,
    }


def _name_prefix(file: str) -> str:
    """Return the prefix of the names of all batches of a file, made of its upload time."""
    return f"batch-{file.removeprefix('file-')[:12]}"


def _name_of(identifier: str) -> str:
    """Return the name of the BatchInference of a batch. Raises ApiError for an invalid id."""
    name = f"batch-{identifier.removeprefix('batch_')}"
    if not _NAME.fullmatch(name):
        raise not_found("Batch object", identifier)
    return name
