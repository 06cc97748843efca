"""Translates NetworkPolicies into nftables rules for the network namespaces of nodes.

Some clusters of the tests have a network plugin that enforces none. Its pods are routed through the
namespace of their node, which sees the addresses of pods behind Services.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
"""A packet to an address of the node, such as the API server, is not forwarded. A node may connect
to its pods, as the probes of the kubelet do: the packets that it sends are not filtered."""


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

    def chain_of(self, pod: Pod) -> str:
        return f"{self.chain}-{pod.ip.replace('.', '-')}"


INGRESS = Direction("Ingress", "from", of_pod="daddr", of_peer="saddr")
EGRESS = Direction("Egress", "to", of_pod="saddr", of_peer="daddr")


@dataclass(frozen=True)
class Pod:
    """A pod with an address of its own, and the labels of its namespace."""

    namespace: str
    ip: str
    labels: dict[str, str] = field(default_factory=dict)
    namespace_labels: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)


def rules(objects: Iterable[Object]) -> str:
    """Return the input of `nft -f` for the Namespaces, Pods and NetworkPolicies of a cluster. It
    replaces earlier rules in one step."""
    by_kind: dict[str, list[Object]] = {"Namespace": [], "Pod": [], "NetworkPolicy": []}
    for found in objects:
        by_kind[found["kind"]].append(found)
    pods = sorted(_pods(by_kind["Pod"], by_kind["Namespace"]), key=lambda pod: pod.ip)
    chains = [
        chain
        for direction in (EGRESS, INGRESS)
        for chain in _chains(direction, pods, by_kind["NetworkPolicy"])
    ]
    return "\n".join([f"{REMOVE}table ip {TABLE} {{", *chains, BASE, "}\n"])


def _pods(pods: list[Object], namespaces: list[Object]) -> Iterator[Pod]:
    """Yield the pods to which policies apply: those with a network of their own that have not
    ended."""
    labels = {found["metadata"]["name"]: found["metadata"]["labels"] for found in namespaces}
    for pod in pods:
        metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
        ended = status.get("phase") in ("Succeeded", "Failed")
        if spec.get("hostNetwork") or ended or "podIP" not in status:
            continue
        ports = [port for each in spec["containers"] for port in each.get("ports", [])]
        yield Pod(
            metadata["namespace"],
            status["podIP"],
            metadata.get("labels", {}),
            labels.get(metadata["namespace"], {}),
            {port["name"]: port["containerPort"] for port in ports if "name" in port},
        )


def _chains(direction: Direction, pods: list[Pod], policies: list[Object]) -> Iterator[str]:
    """Yield a chain for each isolated pod, and the chain that leads to them. A packet that a chain
    returns is allowed in this direction."""
    isolated = []
    for pod in pods:
        own = [each for each in policies if _isolates(each, direction, pod)]
        if not own:
            continue
        isolated.append(f"ip {direction.of_pod} {pod.ip} goto {direction.chain_of(pod)}")
        allowed = [f"{match} return".lstrip() for match in _allowed(direction, pod, pods, own)]
        itself = f"ip {direction.of_peer} {pod.ip} return"
        yield _chain(direction.chain_of(pod), [itself, *allowed, "drop"])
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


def _allowed(
    direction: Direction, pod: Pod, pods: list[Pod], policies: list[Object]
) -> Iterator[str]:
    """Yield the expressions that match the packets that the policies allow."""
    for policy in policies:
        for rule in policy["spec"].get(direction.chain) or ():
            peers = rule.get(direction.peers)
            addresses = (
                [_address(peer, direction, pod.namespace, pods) for peer in peers]
                if peers
                else [""]
            )
            ports = [_port(port, direction, pod) for port in rule.get("ports") or ()] or [""]
            yield from (
                f"{address} {port}".strip()
                for address in addresses
                if address is not None
                for port in ports
            )


def _address(peer: Object, direction: Direction, namespace: str, pods: list[Pod]) -> str | None:
    """Return the expression that matches the addresses of a peer, or None if it has none."""
    address = f"ip {direction.of_peer}"
    if block := peer.get("ipBlock"):
        excluded = block.get("except")
        without = f" {address} != {{ {', '.join(excluded)} }}" if excluded else ""
        return f"{address} {block['cidr']}{without}"
    found = [pod.ip for pod in pods if _is_peer(peer, namespace, pod)]
    return f"{address} {{ {', '.join(found)} }}" if found else None


def _is_peer(peer: Object, namespace: str, pod: Pod) -> bool:
    in_namespace = (
        selects(peer["namespaceSelector"], pod.namespace_labels)
        if "namespaceSelector" in peer
        else pod.namespace == namespace
    )
    return in_namespace and selects(peer.get("podSelector", {}), pod.labels)


def _port(port: Object, direction: Direction, pod: Pod) -> str:
    protocol = port.get("protocol", "TCP").lower()
    number = port.get("port")
    if number is None:
        return f"meta l4proto {protocol}"
    if isinstance(number, str):
        if direction is EGRESS:
            raise ValueError(f"port: names are not supported in rules of egress ({number}).")
        number = pod.ports.get(number, 0)  # no packet has port 0
    return f"{protocol} dport {number}-{port.get('endPort', number)}"


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Return whether a LabelSelector selects an object with these labels."""
    equal = selector.get("matchLabels") or {}
    return equal.items() <= labels.items() and all(
        _holds(each, labels) for each in selector.get("matchExpressions") or ()
    )


def _holds(requirement: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or ()
    return {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
    }[requirement["operator"]]()
