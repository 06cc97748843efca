"""Translates NetworkPolicies into nftables rules for the network namespaces of nodes.

The network plugin of the tests enforces none. Pods are routed through the namespace of their node,
which sees the addresses of the pods behind Services.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
TABLE = "batchinference-network-policies"
REMOVE = f"add table ip {TABLE}\ndelete table ip {TABLE}\n"
"""Removes the rules, also if there are none."""
BASE = """\
 chain forward {
  type filter hook forward priority filter
  ct state established,related accept
  jump egress
  jump ingress
 }
 chain input {
  type filter hook input priority filter
  ct state established,related accept
  jump egress
 }"""
"""Packets to the node, such as those to the API server, are not forwarded. Packets of the node,
such as the probes of the kubelet, are not filtered."""


@dataclass(frozen=True)
class Direction:
    """Ingress or egress: its fields in a policy, and the addresses in a packet."""

    type: str
    peers: str
    of_pod: str
    of_peer: str

    @property
    def chain(self) -> str:
        return self.type.lower()


INGRESS = Direction("Ingress", "from", of_pod="daddr", of_peer="saddr")
EGRESS = Direction("Egress", "to", of_pod="saddr", of_peer="daddr")


@dataclass(frozen=True)
class Pod:
    """A pod with an address of its own."""

    ip: str
    namespace: str
    labels: dict[str, str]
    namespace_labels: dict[str, str]
    ports: dict[str, int]


def rules(objects: Iterable[Object]) -> str:
    """Return the input of `nft -f` for the Namespaces, Pods and NetworkPolicies of a cluster. It
    replaces earlier rules in one step."""
    by_kind: dict[str, list[Object]] = {"Namespace": [], "Pod": [], "NetworkPolicy": []}
    for result in objects:
        by_kind[result["kind"]].append(result)
    labels = {
        result["metadata"]["name"]: result["metadata"]["labels"] for result in by_kind["Namespace"]
    }
    pods = [_pod(pod, labels) for pod in by_kind["Pod"] if _is_filtered(pod)]
    chains = [
        chain
        for direction in (EGRESS, INGRESS)
        for chain in _chains(direction, pods, by_kind["NetworkPolicy"])
    ]
    return "\n".join([f"{REMOVE}table ip {TABLE} {{", *chains, BASE, "}\n"])


def _is_filtered(pod: Object) -> bool:
    """Return whether policies apply to a pod: it has a network of its own, and has not ended."""
    status = pod["status"]
    ended = status.get("phase") in ("Succeeded", "Failed")
    return "podIP" in status and not ended and not pod["spec"].get("hostNetwork")


def _pod(pod: Object, labels: dict[str, dict[str, str]]) -> Pod:
    metadata = pod["metadata"]
    ports = [port for each in pod["spec"]["containers"] for port in each.get("ports", [])]
    return Pod(
        pod["status"]["podIP"],
        metadata["namespace"],
        metadata.get("labels", {}),
        labels.get(metadata["namespace"], {}),
        {port["name"]: port["containerPort"] for port in ports if "name" in port},
    )


def _chains(direction: Direction, pods: list[Pod], policies: list[Object]) -> Iterator[str]:
    """Yield a chain for each isolated pod, and the chain that leads to them. A packet that a chain
    returns is allowed in this direction."""
    isolated = []
    for pod in pods:
        if specs := [each["spec"] for each in policies if _isolates(each, direction, pod)]:
            name = f"{direction.chain}-{pod.ip.replace('.', '-')}"
            isolated.append(f"ip {direction.of_pod} {pod.ip} goto {name}")
            own = [rule for spec in specs for rule in spec.get(direction.chain) or ()]
            allowed = [match for rule in own for match in _matches(rule, direction, pod, pods)]
            itself = f"ip {direction.of_peer} {pod.ip}"
            yield _chain(name, [*(f"{each} return".strip() for each in (itself, *allowed)), "drop"])
    yield _chain(direction.chain, isolated)


def _chain(name: str, lines: list[str]) -> str:
    return "\n".join([f" chain {name} {{", *(f"  {line}" for line in lines), " }"])


def _isolates(policy: Object, direction: Direction, pod: Pod) -> bool:
    spec = policy["spec"]
    return (
        direction.type in spec["policyTypes"]  # the API server sets it
        and policy["metadata"]["namespace"] == pod.namespace
        and selects(spec.get("podSelector", {}), pod.labels)
    )


def _matches(rule: Object, direction: Direction, pod: Pod, pods: list[Pod]) -> Iterator[str]:
    """Yield the expressions of the packets that a rule allows."""
    ports = [_port(port, direction, pod) for port in rule.get("ports") or ()] or [""]
    for peer in rule.get(direction.peers) or [None]:
        address = _address(peer, direction, pod.namespace, pods) if peer else ""
        if address is not None:
            yield from (f"{address} {port}".strip() for port in ports)


def _address(peer: Object, direction: Direction, namespace: str, pods: list[Pod]) -> str | None:
    """Return the expression of the addresses of a peer, or None if it has none."""
    address = f"ip {direction.of_peer}"
    if block := peer.get("ipBlock"):
        excluded = ", ".join(block.get("except", []))
        without = f" {address} != {{ {excluded} }}" if excluded else ""
        return f"{address} {block['cidr']}{without}"
    ips = [pod.ip for pod in pods if _is_peer(peer, namespace, pod)]
    return f"{address} {{ {', '.join(ips)} }}" if ips else None


def _is_peer(peer: Object, namespace: str, pod: Pod) -> bool:
    in_namespace = (
        selects(peer["namespaceSelector"], pod.namespace_labels)
        if "namespaceSelector" in peer
        else pod.namespace == namespace
    )
    return in_namespace and selects(peer.get("podSelector", {}), pod.labels)


def _port(port: Object, direction: Direction, pod: Pod) -> str:
    number = port["port"]
    if isinstance(number, str):
        if direction is EGRESS:
            raise ValueError(f"port: names are not supported in rules of egress ({number}).")
        number = pod.ports.get(number, 0)  # no packet has port 0
    return f"{port.get('protocol', 'TCP').lower()} dport {number}-{port.get('endPort', number)}"


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Return whether a LabelSelector selects an object with these labels."""
    equal = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    return equal.items() <= labels.items() and all(_holds(each, labels) for each in expressions)


def _holds(requirement: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[requirement["operator"]]
