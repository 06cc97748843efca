"""Client for the Kubernetes API. Connects with the kubeconfig of the user. In a pod without a
kubeconfig, connects as the ServiceAccount of the pod."""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from tempfile import mkstemp
from typing import Any
from urllib.parse import quote, urlencode

from batchinference.api.cluster_error import ClusterError
from batchinference.spec.job import API_VERSION, KIND, PLURAL, SCHEDULE_KIND
from batchinference.spec.schedule import SCHEDULE_PLURAL

FIELD_MANAGER = "batchinference"
APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The directory with the token and the namespace of a pod. It exists only in pods."""
TIMEOUT_SECONDS = 30
PAGE = 100
"""Maximum number of objects per page of a list."""
_KEPT = ("name", "namespace", "labels", "annotations", "ownerReferences")
"""The metadata that a BatchInference keeps if it is deleted and created again."""
MAX_DRY_RUN_NAME = 30
"""Maximum number of characters of a job's name with which the name in a dry run begins."""
REPLACE_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between the tries to delete a job and to create it again."""
PLURALS = {KIND: PLURAL, SCHEDULE_KIND: SCHEDULE_PLURAL}
CLUSTER_EXTRA = "./jobs[cluster]"
Object = dict[str, Any]
_LOGGER = logging.getLogger(__name__)
_STATUS_MESSAGE = re.compile(r'"message":\s*"(.*?)",\s*"reason"')
"""Matches the message of a Status object in a text."""
MAX_REASON = 300


def _has_kubeconfig() -> bool:
    # for a path that this user may not read, os.path returns False and raises no error
    return "KUBECONFIG" in os.environ or os.path.exists(os.path.expanduser("~/.kube/config"))


class Kubernetes:
    """Client for the jobs of one namespace. The default is the namespace of the context in the
    kubeconfig, or of the pod in which this program runs."""

    def __init__(
        self, namespace: str | None = None, context: str | None = None, account: Path = ACCOUNT
    ) -> None:
        """Read the kubeconfig. Without a kubeconfig, read the token of this pod in the directory
        `account`. Raises ClusterError if both or the package `kubernetes` are missing."""
        try:
            from kubernetes import config
        except ImportError:
            raise ClusterError(
                f"commands for a cluster need the package kubernetes: pip install "
                f"'{CLUSTER_EXTRA}' in a checkout of the repository of BatchInference"
            ) from None
        in_pod = context is None and not _has_kubeconfig() and os.path.exists(account)
        try:
            default = self._use_account(account) if in_pod else self._use_kubeconfig(context)
        except (config.ConfigException, OSError) as error:
            fix = "Set KUBECONFIG to the kubeconfig file of the cluster"
            raise ClusterError(f"no cluster: {str(error).rstrip('.')}. {fix}") from None
        self.namespace = namespace or default or "default"
        self.host = self._client.configuration.host

    def _use_kubeconfig(self, context: str | None) -> str | None:
        """Connect as the user of the kubeconfig, and return the namespace of the context."""
        from kubernetes import config

        file = os.environ.get("KUBECONFIG")  # the library reads the variable only when imported
        self._client = config.new_client_from_config(file, context=context)
        contexts, active = config.list_kube_config_contexts(file)
        named = (each for each in contexts if each["name"] == context)
        chosen: Object = active if context is None else next(named)
        namespace: str | None = chosen.get("context", {}).get("namespace")
        return namespace

    def _use_account(self, account: Path) -> str:
        """Connect as the ServiceAccount of this pod, and return its namespace."""
        from kubernetes import client, config

        configuration = client.Configuration()
        config.load_incluster_config(configuration)
        self._client = client.ApiClient(configuration)
        return (account / "namespace").read_text().strip()

    def apply(self, document: Object) -> Object:
        """Create or change an object by server-side apply, and return the new object."""
        namespace = document["metadata"].get("namespace") or self.namespace
        path = self._path(document["kind"], namespace, document["metadata"]["name"])
        options = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return self.request("PATCH", f"{path}?{urlencode(options)}", document, APPLY)

    def get(self, name: str) -> Object:
        """Return the BatchInference object with this name."""
        return self.request("GET", self._path(KIND, self.namespace, name))

    def list_jobs(self) -> Iterator[Object]:
        """Yield all BatchInference objects of the namespace."""
        return self._list(self._path(KIND, self.namespace))

    def list_pods(self, selector: str) -> Iterator[Object]:
        """Yield the pods of the namespace that a label selector matches."""
        path = f"/api/v1/namespaces/{quote(self.namespace)}/pods"
        return self._list(path, labelSelector=selector)

    def _list(self, path: str, **options: str) -> Iterator[Object]:
        more = ""
        while True:
            query = urlencode({"limit": PAGE, "continue": more, **options})
            page = self.request("GET", f"{path}?{query}")
            yield from page["items"]
            more = page["metadata"].get("continue", "")
            if not more:
                return

    def patch(self, name: str, spec: Object) -> Object:
        """Change fields of the spec of a job, and return the job."""
        path = f"{self._path(KIND, self.namespace, name)}?fieldManager={FIELD_MANAGER}"
        return self.request("PATCH", path, {"spec": spec}, MERGE_PATCH)

    def delete(self, name: str) -> None:
        """Delete a job. The operator then stops it, and keeps its output."""
        self.request("DELETE", self._path(KIND, self.namespace, name))

    def replace(self, job: Object, sleep: Callable[[float], Any] = time.sleep) -> None:
        """Delete a BatchInference, and create it again without its status.

        First, dry runs check that the API server allows both requests. Until the object is created
        again, a local file has a copy of it. Raises ClusterError. If the object may be missing, the
        message names the local file."""
        metadata = {key: value for key, value in job["metadata"].items() if key in _KEPT}
        new = {key: job[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": metadata}
        other = {**metadata, "name": f"{metadata['name'][:MAX_DRY_RUN_NAME]}-replaced"}
        path, name, uid = self._path(KIND, self.namespace), metadata["name"], job["metadata"]["uid"]
        self.request("POST", f"{path}?dryRun=All", {**new, "metadata": other})
        only_this = {"preconditions": {"uid": uid}}
        self.request("DELETE", f"{path}/{quote(name)}?dryRun=All", only_this)
        file = _write_private_file(new)
        for pause in (*REPLACE_PAUSES, None):
            try:
                self._replace_once(new, uid)
                break
            except ClusterError as error:
                if pause is None or not _is_transient(error):
                    fix = f"If the job is missing, create it again: kubectl create -f {file}"
                    raise ClusterError(f"{error}. {fix}", error.status) from None
                sleep(pause)
        file.unlink()

    def _replace_once(self, new: Object, uid: str) -> None:
        """Delete the object with this uid, and create the object `new`. Skips each request that
        succeeded in an earlier try, even if its answer was lost. Raises ClusterError."""
        path, job = self._path(KIND, self.namespace, new["metadata"]["name"]), None
        try:
            job = self.get(new["metadata"]["name"])
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        if job and job["metadata"]["uid"] == uid:
            if "deletionTimestamp" not in job["metadata"]:
                self.request("DELETE", path, {"preconditions": {"uid": uid}})
        elif job and job["spec"] == new["spec"]:
            return
        self.request("POST", self._path(KIND, self.namespace), new)

    def execute(self, pod: str, container: str, command: Sequence[str]) -> str:
        """Run a command in a container, and return its stdout. Raises ClusterError."""
        from kubernetes.client import ApiException, CoreV1Api
        from kubernetes.stream import stream

        _LOGGER.debug("running in container '%s' of pod '%s': %s", container, pod, command)
        call = CoreV1Api(self._client).connect_get_namespaced_pod_exec
        options: Object = {"stdin": False, "stdout": True, "stderr": False, "tty": False}
        options |= {"container": container, "command": list(command)}
        try:
            printed = stream(call, pod, self.namespace, **options, _request_timeout=TIMEOUT_SECONDS)
        except ApiException as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # Ctrl-C became an ApiException
                raise KeyboardInterrupt from None
            raise ClusterError(_websocket_refusal(str(error.reason))) from None
        return str(printed)

    def _path(self, kind: str, namespace: str, name: str = "") -> str:
        path = f"/apis/{API_VERSION}/namespaces/{quote(namespace)}/{PLURALS[kind]}"
        return f"{path}/{quote(name)}" if name else path

    def request(
        self, method: str, path: str, body: Object | None = None, content_type: str = JSON
    ) -> Object:
        """Send a request and return the JSON response. Raises ClusterError."""
        from urllib3.exceptions import HTTPError

        headers = {"Accept": JSON, "Content-Type": content_type}
        method, url, headers, *_ = self._client.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        try:
            began = time.monotonic()
            response = self._client.call_api(
                method, url, headers, body, _request_timeout=TIMEOUT_SECONDS
            )
            content = response.read()
        except HTTPError as error:
            raise ClusterError(f"{self.host} does not answer: {error}") from None
        seconds = time.monotonic() - began
        _LOGGER.debug("%s %s: %d in %.2f s", method, url, response.status, seconds)
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise ClusterError(_refusal(response.status, content), response.status)
        parsed: Object = json.loads(content)
        return parsed


def _is_transient(error: ClusterError) -> bool:
    transient = (None, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
    return error.status in transient or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _write_private_file(document: Object) -> Path:
    """Write a document to a new file that only this user can read, and return the path. If the
    working directory is read-only, the file is in the directory for temporary files."""
    directory = "." if os.access(".", os.W_OK) else None
    descriptor, path = mkstemp(".yaml", f"{document['metadata']['name']}-", directory)
    with open(descriptor, "w") as file:
        json.dump(document, file, indent=2)
    return Path(path)


def _refusal(status: int, content: bytes) -> str:
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode(errors="replace").strip()
    if status == HTTPStatus.NOT_FOUND and "could not find the requested resource" in message:
        return f"the cluster has no {KIND} resources. Install the chart: docs/cluster-install.md"
    return f"{message} ({status})"


def _websocket_refusal(reason: str) -> str:
    """Return the error message for a WebSocket request that the API server refused. `reason` is the
    error text of the client library, which contains the answer of the server."""
    match = _STATUS_MESSAGE.search(reason)
    return match[1].replace("\\", "") if match else reason[:MAX_REASON]
