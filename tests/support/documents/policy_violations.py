"""Jobs of a tenant that violate the policy of the platform, as listed in
docs/contributing/security-tests.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.documents.minimal import model_step

Object = dict[str, Any]

OPERATOR = "batchinference-system"
"""The namespace of the operator."""
VALUES: Object = {
    "policy": {
        "volumes": ["persistentVolumeClaim", "configMap", "secret", "emptyDir", "image"],
        "images": ["registry.example/", "mirror.example/tenants"],
        "serviceAccounts": ["jobs"],
        "priorityClasses": ["batch"],
        "queues": ["batch", "q"],
        "queuePriorityClasses": [],
        "runtimeClasses": ["gvisor"],
        "schedulers": ["volcano"],
        "tolerations": ["gpu"],
        "labels": ["team", "example.com/"],
        "profiles": True,
        "annotations": ["example.com/", "karpenter.sh/do-not-disrupt"],
        "notifications": [],
        "maxPriority": 10,
        "hostAccess": False,
    },
    "defaults": {"limits": {"devices": 4}},
}
"""Values of the chart of a platform with two tenants."""
NO_PROFILES = {"policy": {"profiles": False}}


@dataclass(frozen=True)
class PolicyViolation:
    """A job that is refused."""

    path: str
    """The field, below `spec`."""
    about: str
    shown: str
    """The beginning of the message: the field that is refused, and its value."""
    spec: Object = field(default_factory=dict)
    values: Object = field(default_factory=dict)
    """Other values of the chart, as in VALUES."""
    namespace: str = "tenant"
    part: str = ""
    """The part of the policy that refuses it. Empty if another rule refuses it."""
    at_apply: bool = True
    """Whether the API server refuses it. Otherwise only the operator does."""

    def __str__(self) -> str:
        return f"{self.path}: {self.about}"

    @property
    def chart_values(self) -> Object:
        """The values of the chart of its platform."""
        return {name: value | self.values.get(name, {}) for name, value in VALUES.items()}

    @property
    def policy(self) -> str:
        """The part of the policy with its value."""
        value = self.chart_values["policy"][self.part]
        listed = ", ".join(value) or "none" if isinstance(value, list) else str(value).lower()
        return f"policy.{self.part}: {listed}"

    @property
    def rule(self) -> str:
        """The rule that refuses it, as docs/contributing/security-tests.md shows it."""
        if self.part:
            return f"`policy.{self.part}`"
        field = self.shown.partition(":")[0]
        return {
            "spec.priority": "`policy.maxPriority`",
            "spec.cluster.limits.devices": "`defaults.limits.devices`",
        }.get(field, "the namespace of the operator")

    @property
    def message(self) -> str:
        if not self.part:
            return self.shown
        return (
            f"{self.shown} is not allowed by the platform ({self.policy}). Change or remove it, or "
            "ask the platform team"
        )


def _own(part: str, path: str, about: str, value: Any, shown: str) -> PolicyViolation:
    """Return a violation by a field of `spec.cluster`."""
    return PolicyViolation(path, about, f"spec.cluster.{shown}", {"cluster": value}, part=part)


def _volume(kind: str, about: str, source: Any) -> PolicyViolation:
    """Return a violation by a volume."""
    return _own("volumes", f"cluster.volumes[].{kind}", about,
                {"volumes": [{"name": "v", kind: source}]},
                f"volumes[0].{kind}: '{kind}'")  # fmt: skip


_EXISTS = {"operator": "Exists"}
_NODES = {"key": "control-plane", **_EXISTS}
_CONFIG = {"configMapRef": {"name": "own"}}
VIOLATIONS = [
    _own("images", "cluster.image", "an image of another registry",
         {"image": "docker.io/x:1"}, "image: 'docker.io/x:1'"),
    _own("images", "cluster.image", "a registry whose name begins like an allowed one",
         {"image": "registry.example.attacker/x"}, "image: 'registry.example.attacker/x'"),
    _own("images", "cluster.image", "a repository whose name begins like an allowed one",
         {"image": "mirror.example/tenants-other/x"}, "image: 'mirror.example/tenants-other/x'"),
    _own("images", "cluster.profiles{}.image", "the same for the pods of a device",
         {"profiles": {"GPU": {"image": "docker.io/x:1"}}},
         "profiles.GPU.image: 'docker.io/x:1'"),
    _own("images", "cluster.volumes[].image.reference", "a volume from an image",
         {"volumes": [{"name": "v", "image": {"reference": "x"}}]},
         "volumes[0].image.reference: 'x'"),
    _volume("hostPath", "a directory of the node", {"path": "/var/lib/kubelet"}),
    _volume("nfs", "a file server, past the PersistentVolumes", {"server": "nfs", "path": "/"}),
    _volume("csi", "a volume of a driver", {"driver": "secrets-store.csi.k8s.io"}),
    _volume("ephemeral", "storage of any StorageClass", {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}),
    _own("serviceAccounts", "cluster.serviceAccountName", "the account of another application",
         {"serviceAccountName": "deployer"}, "serviceAccountName: 'deployer'"),
    _own("priorityClasses", "cluster.priorityClassName", "pods that evict those of others",
         {"priorityClassName": "system-node-critical"},
         "priorityClassName: 'system-node-critical'"),
    _own("queues", "cluster.queueName", "the quota of another team",
         {"queueName": "urgent"}, "queueName: 'urgent'"),
    _own("queuePriorityClasses", "cluster.queuePriorityClassName", "Kueue jobs that evict others",
         {"queueName": "q", "queuePriorityClassName": "urgent"},
         "queuePriorityClassName: 'urgent'"),
    _own("runtimeClasses", "cluster.profiles{}.runtimeClassName", "a less isolated runtime",
         {"profiles": {"GPU": {"runtimeClassName": "runc"}}},
         "profiles.GPU.runtimeClassName: 'runc'"),
    _own("schedulers", "cluster.schedulerName", "a scheduler without the rules of the platform",
         {"schedulerName": "own"}, "schedulerName: 'own'"),
    _own("labels", "cluster.labels", "pods that the mesh or a network policy treats differently",
         {"labels": {"sidecar.istio.io/inject": "false"}},
         "labels.sidecar.istio.io/inject: 'sidecar.istio.io/inject'"),
    _own("tolerations", "cluster.tolerations[]", "nodes of the control plane",
         {"tolerations": [_NODES]}, "tolerations[0].key: 'control-plane'"),
    _own("tolerations", "cluster.tolerations[]", "nodes with any taint",
         {"tolerations": [_EXISTS]}, "tolerations[0].key: ''"),
    _own("tolerations", "cluster.head.tolerations[]", "the same for the head",
         {"head": {"tolerations": [_NODES]}}, "head.tolerations[0].key: 'control-plane'"),
    _own("tolerations", "cluster.profiles{}.tolerations[]", "the same by a profile",
         {"profiles": {"GPU": {"tolerations": [_NODES]}}},
         "profiles.GPU.tolerations[0].key: 'control-plane'"),
    *(_own("annotations", "cluster.annotations", about, {"annotations": {name: "x"}},
           f"annotations.{name}: '{name}'")
      for name, about in [
          ("container.apparmor.security.beta.kubernetes.io/ray", "files that AppArmor protects"),
          ("seccomp.security.alpha.kubernetes.io/pod", "all system calls"),
          ("sidecar.istio.io/userVolume", "a directory of the node, by a sidecar of Istio"),
          ("io.kubernetes.cri-o.Devices", "a device of the node, by CRI-O"),
          ("devices.nri.io/container.ray", "a device of the node, by a plugin of the runtime"),
          ("io.katacontainers.config.hypervisor.path", "a program of the node, by Kata"),
          ("k8s.v1.cni.cncf.io/networks", "another network, by Multus"),
          ("example.com", "a key that only begins like an allowed one"),
          ("karpenter.sh/do-not-disrupt-2", "a key that only begins like an allowed key"),
      ]),
    *(_own("hostAccess", "cluster.envFrom[].prefix", about, {"envFrom": [source]},
           f"envFrom[0].prefix: '{source.get('prefix', '')}'")
      for about, source in [
          ("any variable, such as NVIDIA_VISIBLE_DEVICES", _CONFIG),
          ("the same with the beginning of its name", _CONFIG | {"prefix": "NV"}),
          ("the same for an NPU", _CONFIG | {"prefix": "ASCEND_VISIBLE_DEVICES"}),
          ("the same from a Secret", {"secretRef": {"name": "own"}, "prefix": "NVIDIA_MIG_"}),
      ]),
    PolicyViolation("cluster.profiles", "a profile of the tenant, where they are off",
            "spec.cluster.profiles.mine: it",
            {"cluster": {"profiles": {"mine": {"device": "cuda"}}}}, NO_PROFILES, part="profiles"),
    PolicyViolation("priority", "a priority above the limit",
            "spec.priority: 11 is above policy.maxPriority (10). Lower it", {"priority": 11}),
    PolicyViolation("notifications", "requests of the operator to an address of the tenant",
            "spec.notifications: it",
            {"notifications": [{"name": "mine", "urlEnv": "URL"}]}, part="notifications"),
    PolicyViolation("steps[].resources.gpu", "more devices than the limit",
            "spec.cluster.limits.devices: the job may grow to 8 devices (embed 8 x 1) and 4 are "
            "allowed. Lower replicas.max, or raise the limit (cluster.limits.devices of the job, "
            "defaults.limits.devices of the platform)",
            {"steps": [model_step(replicas={"min": 1, "max": 8}, resources={"gpu": 1})]},
            at_apply=False),
    PolicyViolation("metadata.namespace", "a job that can read the Secrets of the operator",
            f"metadata.namespace: '{OPERATOR}' is the operator's namespace, whose Secrets its jobs "
            "could read: create the BatchInference in another namespace", namespace=OPERATOR),
]  # fmt: skip
