"""Jobs of a tenant that violate the policy of the platform. docs/security.md lists them."""

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
        "queuePriorityClasses": [],
        "runtimeClasses": ["gvisor"],
        "tolerations": ["gpu"],
        "profiles": True,
        "maxPriority": 10,
        "hostAccess": False,
        "patches": True,
    },
    "defaults": {"limits": {"devices": 4}},
}
"""Values of the chart of a platform with two tenants."""
NO_PATCHES = {"policy": {"patches": False, "profiles": False}}
SOME_PATCHES = {"policy": {"patches": ["metadata.annotations", "spec.containers"]}}


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
        """The rule that refuses it, as docs/security.md shows it."""
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


def _patched(
    part: str, path: str, about: str, pod: Object, shown: str, **more: Any
) -> PolicyViolation:
    """Return a violation by a patch of the PodSpec."""
    patch = {"groups": ["*"], "pod": {"spec": pod}}
    return PolicyViolation(
        f"cluster.patches[].pod.spec.{path}",
        about,
        f"spec.cluster.patches[0].pod.spec.{shown}",
        {"cluster": {"patches": [patch]}},
        part=part,
        **more,
    )


def _volume(kind: str, value: Any) -> Object:
    return {"volumes": [{"name": "v", kind: value}]}


def _container(kind: str = "containers", **fields: Any) -> Object:
    return {kind: [{"name": "own", **fields}]}


_EXISTS = {"operator": "Exists"}
_NODES = {"key": "control-plane", **_EXISTS}
_MOUNTED = {"name": "v", "mountPath": "/v", "hostPath": {"path": "/var/lib/kubelet"}}
VIOLATIONS = [
    _own("images", "cluster.image", "an image of another registry",
         {"image": "docker.io/x:1"}, "image: 'docker.io/x:1'"),
    _own("images", "cluster.image", "a registry whose name begins like an allowed one",
         {"image": "registry.example.attacker/x"}, "image: 'registry.example.attacker/x'"),
    _own("images", "cluster.image", "a repository whose name begins like an allowed one",
         {"image": "mirror.example/tenants-other/x"}, "image: 'mirror.example/tenants-other/x'"),
    _patched("images", "containers[].image", "another image of Ray",
             {"containers": [{"name": "ray", "image": "x"}]}, "containers[0].image: 'x'"),
    _patched("images", "containers[].image", "the image of a sidecar",
             _container(image="x"), "containers[0].image: 'x'"),
    _patched("images", "initContainers[].image", "the image of an init container",
             _container("initContainers", image="x"), "initContainers[0].image: 'x'"),
    _patched("images", "volumes[].image.reference", "a volume from an image",
             _volume("image", {"reference": "x"}), "volumes[0].image.reference: 'x'"),
    _own("volumes", "cluster.volumes[].hostPath", "a directory of the node",
         {"volumes": [_MOUNTED]}, "volumes[0].hostPath: 'hostPath'"),
    *(_patched("volumes", f"volumes[].{kind}", about, _volume(kind, value),
               f"volumes[0].{kind}: '{kind}'")
      for kind, about, value in [
          ("hostPath", "a directory of the node", {"path": "/"}),
          ("nfs", "a file server, past the PersistentVolumes", {"server": "nfs", "path": "/"}),
          ("cephfs", "storage of other tenants", {"monitors": ["ceph"]}),
          ("csi", "a volume of a driver", {"driver": "secrets-store.csi.k8s.io"}),
          ("projected", "a token of the ServiceAccount", {"sources": []}),
      ]),
    _own("serviceAccounts", "cluster.serviceAccountName", "the account of another application",
         {"serviceAccountName": "deployer"}, "serviceAccountName: 'deployer'"),
    _patched("serviceAccounts", "serviceAccountName", "the same by a patch",
             {"serviceAccountName": "deployer"}, "serviceAccountName: 'deployer'"),
    _patched("serviceAccounts", "serviceAccount", "the same by the deprecated field",
             {"serviceAccount": "deployer"}, "serviceAccount: 'deployer'"),
    _own("priorityClasses", "cluster.priorityClassName", "pods that evict those of others",
         {"priorityClassName": "system-node-critical"},
         "priorityClassName: 'system-node-critical'"),
    _patched("priorityClasses", "priorityClassName", "the same by a patch",
             {"priorityClassName": "urgent"}, "priorityClassName: 'urgent'"),
    _own("queuePriorityClasses", "cluster.queuePriorityClassName", "Kueue jobs that evict others",
         {"queueName": "q", "queuePriorityClassName": "urgent"},
         "queuePriorityClassName: 'urgent'"),
    _own("runtimeClasses", "cluster.profiles{}.runtimeClassName", "a less isolated runtime",
         {"profiles": {"GPU": {"runtimeClassName": "runc"}}},
         "profiles.GPU.runtimeClassName: 'runc'"),
    _patched("runtimeClasses", "runtimeClassName", "the same by a patch",
             {"runtimeClassName": "runc"}, "runtimeClassName: 'runc'"),
    _own("tolerations", "cluster.tolerations[]", "nodes of the control plane",
         {"tolerations": [_NODES]}, "tolerations[0].key: 'control-plane'"),
    _own("tolerations", "cluster.tolerations[]", "nodes with any taint",
         {"tolerations": [_EXISTS]}, "tolerations[0].key: ''"),
    _own("tolerations", "cluster.head.tolerations[]", "the same for the head",
         {"head": {"tolerations": [_NODES]}}, "head.tolerations[0].key: 'control-plane'"),
    _own("tolerations", "cluster.profiles{}.tolerations[]", "the same by a profile",
         {"profiles": {"GPU": {"tolerations": [_NODES]}}},
         "profiles.GPU.tolerations[0].key: 'control-plane'"),
    _patched("tolerations", "tolerations[]", "the same by a patch",
             {"tolerations": [_EXISTS]}, "tolerations[0].key: ''"),
    *(_patched("hostAccess", name, about, {name: value}, f"{name}: {shown}")
      for name, about, value, shown in [
          ("hostNetwork", "the network of the node", True, "it"),
          ("hostPID", "the processes of the node", True, "it"),
          ("hostIPC", "the shared memory of the node", True, "it"),
          ("nodeName", "a node of the tenant's choice, past the scheduler", "node-7", "'node-7'"),
      ]),
    _patched("hostAccess", "containers[].ports[].hostPort", "a port of the node",
             _container(ports=[{"containerPort": 22, "hostPort": 22}]),
             "containers[0].ports[0].hostPort: it"),
    *(_patched("hostAccess", f"containers[].{path}.host", about,
               _container(**value), f"containers[0].{path}.host: '{host}'")
      for path, about, host, value in [
          ("livenessProbe.httpGet", "requests from the network of the node", "169.254.169.254",
           {"livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}}),
          ("readinessProbe.tcpSocket", "the same to the node itself", "Localhost",
           {"readinessProbe": {"tcpSocket": {"host": "Localhost", "port": 80}}}),
          ("lifecycle.preStop.tcpSocket", "the same when the container stops", "169.254.169.254",
           {"lifecycle": {"preStop": {"tcpSocket": {"host": "169.254.169.254", "port": 80}}}}),
      ]),
    *(PolicyViolation("cluster.patches[].pod.metadata.annotations", about,
            f"spec.cluster.patches[0].pod.metadata.annotations.{name}: '{name}'",
            {"cluster": {"patches": [{"groups": ["*"], "pod": {"metadata": {
                "annotations": {name: "unconfined"}}}}]}},
            part="hostAccess")
      for name, about in [
          ("container.apparmor.security.beta.kubernetes.io/ray",
           "files that AppArmor protects, by an annotation"),
          ("seccomp.security.alpha.kubernetes.io/pod", "all system calls, by an annotation"),
          ("sidecar.istio.io/userVolume", "a directory of the node, by a sidecar of Istio"),
          ("io.kubernetes.cri-o.Devices", "a device of the node, by an annotation of CRI-O"),
          ("cdi.k8s.io/gpu", "a device of the node, by an annotation of CDI"),
          ("k8s.v1.cni.cncf.io/networks", "another network, by an annotation of Multus"),
      ]),
    *(_patched("hostAccess", f"{kind}[].securityContext.{path}", about,
               _container(kind, securityContext=context),
               f"{kind}[0].securityContext.{path.replace('[]', '[0]')}: {shown}")
      for kind, path, about, context, shown in [
          ("containers", "privileged", "all rights on the node", {"privileged": True}, "it"),
          ("initContainers", "privileged", "the same before Ray starts",
           {"privileged": True}, "it"),
          ("containers", "allowPrivilegeEscalation", "rights by setuid programs",
           {"allowPrivilegeEscalation": True}, "it"),
          ("containers", "allowPrivilegeEscalation", "the same by removing the field",
           {"allowPrivilegeEscalation": None}, "'null'"),
          ("containers", "procMount", "the kernel's settings",
           {"procMount": "Unmasked"}, "'Unmasked'"),
          ("containers", "capabilities.add[]", "a capability",
           {"capabilities": {"add": ["SYS_ADMIN"]}}, "'SYS_ADMIN'"),
          ("containers", "capabilities.drop", "the default capabilities",
           {"capabilities": {"drop": []}}, "it"),
          ("containers", "capabilities.drop", "the same by removing the field",
           {"capabilities": {"drop": None}}, "'null'"),
          ("containers", "capabilities", "the same by removing the field",
           {"capabilities": None}, "'null'"),
          ("containers", "seccompProfile.type", "all system calls",
           {"seccompProfile": {"type": "Unconfined"}}, "'Unconfined'"),
          ("containers", "seccompProfile", "the same by removing the field",
           {"seccompProfile": None}, "'null'"),
          ("containers", "appArmorProfile.type", "files that AppArmor protects",
           {"appArmorProfile": {"type": "Unconfined"}}, "'Unconfined'"),
          ("containers", "seLinuxOptions", "files that SELinux protects",
           {"seLinuxOptions": {"type": "spc_t"}}, "it"),
          ("containers", "windowsOptions.hostProcess", "a process of the node",
           {"windowsOptions": {"hostProcess": True}}, "it"),
      ]),
    _patched("hostAccess", "containers[].securityContext", "all of this by removing the field",
             {"containers": [{"name": "ray", "securityContext": None}]},
             "containers[0].securityContext: 'null'"),
    *(_patched("hostAccess", f"securityContext.{path}", about, {"securityContext": context},
               f"securityContext.{path.replace('[]', '[0]')}: {shown}")
      for path, about, context, shown in [
          ("seccompProfile.type", "all system calls",
           {"seccompProfile": {"type": "Unconfined"}}, "'Unconfined'"),
          ("seLinuxOptions", "files that SELinux protects",
           {"seLinuxOptions": {"type": "spc_t"}}, "it"),
          ("sysctls[]", "the kernel's settings",
           {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}, "it"),
      ]),
    PolicyViolation("cluster.profiles", "a profile of the tenant, where they are off",
            "spec.cluster.profiles.mine: it",
            {"cluster": {"profiles": {"mine": {"device": "cuda"}}}}, NO_PATCHES, part="profiles"),
    PolicyViolation("cluster.patches", "any patch, where they are off",
                    "spec.cluster.patches[0]: it",
            {"cluster": {"patches": [{"groups": ["*"], "pod": {}}]}}, NO_PATCHES, part="patches"),
    _patched("patches", "hostUsers", "a field that patches may not change", {"hostUsers": False},
             "hostUsers: it", values=SOME_PATCHES),
    PolicyViolation("priority", "a priority above the limit",
            "spec.priority: 11 is above policy.maxPriority (10). Lower it", {"priority": 11}),
    PolicyViolation("steps[].resources.gpu", "more devices than the limit",
            "spec.cluster.limits.devices: the job may grow to 8 devices (embed 8 x 1) and 4 are "
            "allowed: lower replicas.max, or raise the limit (cluster.limits.devices of the job, "
            "defaults.limits.devices of the platform)",
            {"steps": [model_step(replicas={"min": 1, "max": 8}, resources={"gpu": 1})]},
            at_apply=False),
    PolicyViolation("metadata.namespace", "a job that can read the Secrets of the operator",
            f"metadata.namespace: '{OPERATOR}' is the operator's namespace, whose Secrets its jobs "
            "could read: create the BatchInference in another namespace", namespace=OPERATOR),
]  # fmt: skip
