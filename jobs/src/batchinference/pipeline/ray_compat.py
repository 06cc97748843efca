"""Uses private parts of Ray Core, in the version that pyproject.toml pins.

A test checks that only this module and `ray_data_compat` do so. This module imports no Ray Data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray
from ray import get_runtime_context
from ray._private import auto_init_hook, ray_constants
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray._private.node import Node
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.worker import global_worker
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_exists,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)

NODES_SECONDS = 10
"""Timeout in seconds of a request for the nodes."""


@contextmanager
def replaced(target: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a module or object of Ray during the block."""
    before = {name: getattr(target, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


def without_monitors(*, log_to_driver: bool) -> AbstractContextManager[None]:
    """Make `ray.init` start no dashboard or autoscaler. Without `log_to_driver`, also start no log
    monitor, which sends the output of workers to the driver. Ray on a single machine needs none of
    these processes. Each imports most of Ray, and `ray.init` waits for the dashboard even if it
    serves no web pages."""
    names = ["start_api_server", "start_monitor", *["start_log_monitor"] * (not log_to_driver)]
    return replaced(Node, **dict.fromkeys(names, lambda *_, **__: None))


@contextmanager
def nothing_left_if_interrupted() -> Iterator[None]:
    """Kill the processes of Ray if `ray.init` raises an error. Ray itself kills them only when the
    program ends. Until then, they would take CPU time from the next start."""
    started: list[Node] = []
    register: Callable[[Node], None] = Node._register_shutdown_hooks

    def recorded(node: Node) -> None:
        started.append(node)
        register(node)

    try:
        with replaced(Node, _register_shutdown_hooks=recorded):
            yield
    except BaseException:
        for node in started:
            node.kill_all_processes(check_alive=False)
        raise


def on_loopback() -> AbstractContextManager[None]:
    """Make `ray.init` use the loopback interface, as on macOS, so no other machine can connect."""
    return replaced(ray_constants, ENABLE_RAY_CLUSTER=False)


def accelerator_of_machine() -> tuple[str, int]:
    """Return the resource name and the number of the accelerators that `ray.init` would find."""
    manager, count = ResourceAndLabelSpec._get_current_node_accelerator(None, {})
    return (manager.get_resource_name(), int(count)) if manager else ("", 0)


def retries_of_this_task() -> int:
    """Return how often Ray has retried the running task; 0 outside of Ray."""
    if not global_worker.connected:
        return 0
    core_worker = global_worker.core_worker  # type: ignore[attr-defined]
    return int(core_worker.get_current_task_attempt_number())


def number_of_this_task() -> int:
    """Return a number that identifies the running task. Its retries have the same number."""
    return int(str(get_runtime_context().get_task_id())[:12], 16)


def set_flag(name: str) -> None:
    """Set a flag that all processes of the Ray cluster can read, until the cluster ends."""
    _internal_kv_put(name, b"1")


def has_flag(name: str) -> bool:
    """Return whether a flag is set."""
    return bool(_internal_kv_initialized() and _internal_kv_exists(name))


def replaces_dead_process() -> bool:
    """Return whether the process of this task or actor replaces a dead process."""
    if not global_worker.connected:
        return False
    if global_worker.actor_id.is_nil():
        return retries_of_this_task() > 0
    return _actor_has_restarted()


@cache
def _actor_has_restarted() -> bool:
    """Return whether Ray has restarted this actor. A restarted actor has a new process."""
    with warnings.catch_warnings():
        # Ray reads a deprecated property here, and would print a warning in each worker
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(get_runtime_context().was_current_actor_reconstructed)


def put_note(name: str, text: str) -> None:
    """Store a text that all processes of the Ray cluster can read, until the cluster ends."""
    if _internal_kv_initialized():
        _internal_kv_put(name, text.encode(), overwrite=True)


def remove_note(name: str) -> None:
    """Remove a stored text."""
    if _internal_kv_initialized():
        _internal_kv_del(name)


def notes_below(prefix: str) -> dict[str, str]:
    """Return the stored texts whose names begin with a prefix, by name."""
    names = _internal_kv_list(prefix) if _internal_kv_initialized() else []
    texts = ((name.decode(), _internal_kv_get(name)) for name in names)
    return {name: text.decode() for name, text in texts if text is not None}


def owner_of_this_process() -> str:
    """Return the ID of the running actor or, without an actor, of the running task. Empty outside
    of Ray. A process that replaces a dead one has the same owner."""
    if not global_worker.connected:
        return ""
    context = get_runtime_context()
    return str(context.get_actor_id() or context.get_task_id() or "")


def node_of_this_process() -> str:
    """Return the ID of the node of this process; empty outside of Ray."""
    return "" if not global_worker.connected else str(get_runtime_context().get_node_id())


def lost_nodes() -> set[str]:
    """Return the IDs of the nodes that the Ray cluster has lost."""
    return {str(node["NodeID"]) for node in ray.nodes() if not node["Alive"]}


def nodes_like_this(label: str) -> set[str]:
    """Return the IDs of the living nodes whose value of a label is that of this process's node.
    Empty if the node does not have the label."""
    labels = {str(node["NodeID"]): node["Labels"] or {} for node in ray.nodes() if node["Alive"]}
    own = labels.get(node_of_this_process(), {}).get(label)
    return {node for node, values in labels.items() if own and values.get(label) == own}


@dataclass(frozen=True)
class NodeLifetime:
    """When a Ray node existed, in seconds since 1970. `end` is None while the node is alive."""

    labels: dict[str, str]
    start: float
    end: float | None

    def seconds(self, now: float) -> float:
        """Return how long the node has existed until `now`."""
        return max(0.0, (now if self.end is None else self.end) - self.start)


def node_lifetimes() -> list[NodeLifetime]:
    """Return the lifetimes of all nodes, also of lost ones. Raises if the cluster is down."""
    client = global_worker.gcs_client  # type: ignore[attr-defined]
    nodes = client.get_all_node_info(timeout=NODES_SECONDS).values()
    return [
        NodeLifetime(dict(node.labels), node.start_time_ms / 1000, node.end_time_ms / 1000 or None)
        for node in nodes
    ]
