"""The rules of nftables into which the tests translate NetworkPolicies."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster.network_policies import rules, selects

Object = dict[str, Any]
POD, PEER, OTHER = "10.0.0.1", "10.0.0.2", "10.0.1.1"
"""A pod, another one of its namespace, and one of another namespace."""


def namespace(name: str) -> Object:
    metadata = {"name": name, "labels": {"kubernetes.io/metadata.name": name}}
    return {"kind": "Namespace", "metadata": metadata}


def pod(namespace: str, ip: str, app: str, phase: str = "Running", **spec: object) -> Object:
    ports = [{"name": "http", "containerPort": 8080}, {"containerPort": 9}]
    return {
        "kind": "Pod",
        "metadata": {"namespace": namespace, "labels": {"app": app}},
        "spec": {"containers": [{"ports": ports}], **spec},
        "status": {"podIP": ip, "phase": phase},
    }


def policy(**spec: object) -> Object:
    return {
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "a"},
        "spec": {"podSelector": {"matchLabels": {"app": "pod"}}, **spec},
    }


CLUSTER = [
    namespace("a"),
    namespace("b"),
    pod("a", POD, "pod"),
    pod("a", PEER, "peer"),
    pod("b", OTHER, "peer"),
    pod("b", "10.0.9.1", "peer", hostNetwork=True),
    pod("b", "10.0.9.2", "peer", phase="Succeeded"),
    {"kind": "Pod", "metadata": {"namespace": "a"}, "spec": {}, "status": {}},
]


def chains(*policies: Object) -> dict[str, list[str]]:
    """Return the lines of each chain of the rules."""
    texts: dict[str, list[str]] = {}
    for line in rules([*CLUSTER, *policies]).splitlines():
        if line.startswith(" chain "):
            lines = texts[line.split()[1]] = []
        elif line.startswith("  "):
            lines.append(line.strip())
    return texts


def ingress(*rules: Object) -> Object:
    return policy(policyTypes=["Ingress"], ingress=list(rules))


def egress(*rules: Object) -> Object:
    return policy(policyTypes=["Egress"], egress=list(rules))


def test_packets_between_pods_that_no_policy_selects_pass() -> None:
    result = chains()
    assert result["egress"] == result["ingress"] == []
    both = ["ct state established,related accept", "jump egress", "jump ingress"]
    assert (result["forward"][1:], result["input"][1:]) == (both, both[:2])


def test_policy_isolates_the_pods_that_it_selects_in_its_directions() -> None:
    denied = chains(policy(policyTypes=["Ingress", "Egress"]))
    assert denied["ingress"] == [f"ip daddr {POD} goto ingress-10-0-0-1"]
    assert denied["ingress-10-0-0-1"] == [f"ip saddr {POD} return", "drop"]
    assert denied["egress"] == [f"ip saddr {POD} goto egress-10-0-0-1"]
    assert denied["egress-10-0-0-1"] == [f"ip daddr {POD} return", "drop"]
    assert chains(ingress())["egress"] == []
    everyone = chains(policy(policyTypes=["Egress"], podSelector={}))
    assert len(everyone["egress"]) == len([POD, PEER])


IN_B = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}}
IS_PEER = {"podSelector": {"matchLabels": {"app": "peer"}}}
BLOCK = {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16", "10.0.0.0/8"]}


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ({}, [""]),
        ({"from": [], "ports": []}, [""]),
        ({"from": [IS_PEER]}, [f"ip saddr {{ {PEER} }}"]),
        ({"from": [{"podSelector": {}}]}, [f"ip saddr {{ {POD}, {PEER} }}"]),
        ({"from": [IN_B]}, [f"ip saddr {{ {OTHER} }}"]),
        ({"from": [{"namespaceSelector": {}, **IS_PEER}]}, [f"ip saddr {{ {PEER}, {OTHER} }}"]),
        ({"from": [{**IN_B, "podSelector": {"matchLabels": {"app": "none"}}}]}, []),
        ({"from": [IS_PEER, IN_B]}, [f"ip saddr {{ {PEER} }}", f"ip saddr {{ {OTHER} }}"]),
        ({"from": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}, ["ip saddr 10.9.0.0/16"]),
        (
            {"from": [{"ipBlock": BLOCK}], "ports": [{"port": 80}]},
            ["ip saddr 0.0.0.0/0 ip saddr != { 169.254.0.0/16, 10.0.0.0/8 } tcp dport 80-80"],
        ),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, ["udp dport 53-53"]),
        ({"ports": [{"port": 1, "endPort": 9}]}, ["tcp dport 1-9"]),
        ({"ports": [{"port": "http"}]}, ["tcp dport 8080-8080"]),
        ({"ports": [{"port": "absent"}]}, ["tcp dport 0-0"]),
        (
            {"from": [IS_PEER], "ports": [{"port": 1}, {"port": 2}]},
            [f"ip saddr {{ {PEER} }} tcp dport {port}-{port}" for port in (1, 2)],
        ),
    ],
)
def test_rule_allows_its_peers_at_its_ports(rule: Object, allowed: list[str]) -> None:
    lines = [f"{match} return".strip() for match in allowed]
    assert chains(ingress(rule))["ingress-10-0-0-1"][1:-1] == lines


def test_rules_of_egress_match_the_destination() -> None:
    result = chains(egress({"to": [IN_B], "ports": [{"port": 7070}]}, {"ports": [{"port": 53}]}))
    allowed = [f"ip daddr {{ {OTHER} }} tcp dport 7070-7070 return", "tcp dport 53-53 return"]
    assert result["egress-10-0-0-1"][1:-1] == allowed
    with pytest.raises(ValueError, match="port: names"):
        chains(egress({"ports": [{"port": "http"}]}))


def test_policies_of_a_pod_add_up() -> None:
    result = chains(ingress({"ports": [{"port": 1}]}), ingress({"ports": [{"port": 2}]}))
    assert result["ingress-10-0-0-1"][1:-1] == ["tcp dport 1-1 return", "tcp dport 2-2 return"]


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["x", "y"], True),
        ("In", ["y"], False),
        ("NotIn", ["y"], True),
        ("NotIn", ["x"], False),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_selector_requires_all_of_its_expressions(
    operator: str, values: list[str] | None, selected: bool
) -> None:
    expression = {"key": "a", "operator": operator, "values": values}
    selector = {"matchLabels": {"b": "1"}, "matchExpressions": [expression]}
    assert selects(selector, {"a": "x", "b": "1"}) == selected
    assert not selects(selector, {"a": "x", "b": "2"})
    assert selects({"matchExpressions": [{**expression, "key": "none"}]}, {"a": "x"}) == (
        operator in ("NotIn", "DoesNotExist")
    )
