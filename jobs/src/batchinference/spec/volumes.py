"""Volumes of the pods of a job and their mounts, in the format of a Kubernetes pod."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import (
    DIRECTORY,
    DNS_LABEL,
    DNS_SUBDOMAIN,
    RELATIVE_PATH,
    SpecModel,
    invalid,
    keyed,
)
from batchinference.spec.pod_settings import DataKey, NamedRef, ObjectName
from batchinference.spec.quantities import MemoryRequest

Directory = Annotated[str, Field(pattern=DIRECTORY, max_length=1024)]
RelativePath = Annotated[str, Field(pattern=RELATIVE_PATH, max_length=1024)]
VolumeName = Annotated[str, Field(pattern=DNS_LABEL, max_length=40)]
RESERVED_VOLUMES = "^(ray-logs|shared-mem|ray-token|batchinference-job|batchinference-kube-api)$"
RESERVED_PATHS = (
    "^/+((tmp/+ray|dev/+shm|etc/+batchinference|(var/+)?run/+secrets/+(kubernetes|ray)[.]io)"
    "(/.*)?)?$"
)
"""Mount paths that jobs cannot use: those of KubeRay and the operator, and the root directory."""
_RESERVED = "is reserved for Ray, KubeRay and the operator"


class ClaimVolume(SpecModel):
    claim_name: ObjectName
    """The name of the PersistentVolumeClaim."""
    read_only: bool = False
    """Whether the claim is mounted read-only everywhere."""


class KeyToPath(SpecModel):
    key: DataKey
    """The key in the ConfigMap or Secret."""
    path: RelativePath
    """The file in the volume."""


class KeyFiles(SpecModel):
    items: Annotated[list[KeyToPath], Field(max_length=64)] = []
    """The keys and their files. By default, each key becomes a file of this name."""
    optional: bool = False
    """Whether pods start if the ConfigMap or Secret does not exist."""


class ConfigMapVolume(KeyFiles):
    name: ObjectName
    """The name of the ConfigMap."""


class SecretVolume(KeyFiles):
    secret_name: ObjectName
    """The name of the Secret."""


class EmptyDirVolume(SpecModel):
    medium: Literal["", "Memory"] = ""
    """`Memory` for a file system in memory, which counts as memory of the pod."""
    size_limit: MemoryRequest | None = None
    """Maximum size, after which the pod is evicted."""


class StorageRequests(SpecModel):
    storage: MemoryRequest
    """The size of the volume."""


class ClaimResources(SpecModel):
    requests: StorageRequests
    """The size of the volume."""


class ClaimSpec(SpecModel):
    access_modes: Annotated[
        list[Literal["ReadWriteOnce", "ReadWriteOncePod"]], Field(min_length=1, max_length=1)
    ]
    """How the pod mounts the volume."""
    storage_class_name: ObjectName | None = None
    """The StorageClass. By default, the one of the cluster."""
    resources: ClaimResources
    """The size of the volume."""


class ClaimTemplate(SpecModel):
    spec: ClaimSpec
    """The PersistentVolumeClaim of a pod."""


class EphemeralVolume(SpecModel):
    volume_claim_template: ClaimTemplate
    """The PersistentVolumeClaim that each pod gets, and that is deleted with the pod."""


class CsiVolume(SpecModel):
    driver: Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=63)]
    """The name of the CSI driver."""
    read_only: bool = False
    """Whether the volume is read-only."""
    fs_type: Annotated[str, Field(max_length=32)] | None = None
    """The type of the file system."""
    volume_attributes: Annotated[
        dict[Annotated[str, Field(max_length=253)], Annotated[str, Field(max_length=1024)]],
        Field(max_length=32),
    ] = {}
    """Settings of the driver."""
    node_publish_secret_ref: NamedRef | None = None
    """The Secret with the credentials of the driver."""


class ImageVolume(SpecModel):
    reference: Annotated[str, Field(min_length=1, max_length=512)]
    """The image or OCI artifact, whose files are mounted read-only."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled."""


class NfsVolume(SpecModel):
    server: Annotated[str, Field(min_length=1, max_length=253)]
    """The host name of the server."""
    path: Directory
    """The exported directory."""
    read_only: bool = False
    """Whether the volume is read-only."""


class HostPathVolume(SpecModel):
    path: Directory
    """The directory on the node."""


class Volume(SpecModel):
    """A volume of all pods, to be mounted in `volumeMounts`. A volume has exactly one source."""

    name: VolumeName
    """The name of the volume in the pods."""
    persistent_volume_claim: ClaimVolume | None = None
    """A PersistentVolumeClaim that all pods can mount (ReadWriteMany or ReadOnlyMany)."""
    config_map: ConfigMapVolume | None = None
    """A ConfigMap, with one file per key."""
    secret: SecretVolume | None = None
    """A Secret, with one file per key."""
    empty_dir: EmptyDirVolume | None = None
    """An empty directory of each pod, which is deleted with the pod."""
    ephemeral: EphemeralVolume | None = None
    """A PersistentVolumeClaim of each pod, which is deleted with the pod."""
    csi: CsiVolume | None = None
    """A volume of a CSI driver."""
    image: ImageVolume | None = None
    """The files of an image, such as a model."""
    nfs: NfsVolume | None = None
    """A directory of an NFS server."""
    host_path: HostPathVolume | None = None
    """A directory of the node. Pods share it only if all of them run on the same node."""

    @property
    def outlives_pods(self) -> bool:
        """Return whether pods can write files to the volume that outlive the pods."""
        writable = self.persistent_volume_claim or self.nfs or self.csi
        return self.host_path is not None or (writable is not None and not writable.read_only)

    def _check(self) -> None:
        if len(self.model_dump(exclude_none=True, exclude={"name"})) != 1:
            _, *sources, last = (str(each.alias) for each in type(self).model_fields.values())
            raise invalid(f"give exactly one of {', '.join(sources)} and {last}")
        if re.match(RESERVED_VOLUMES, self.name):
            raise invalid(f"the name '{self.name}' {_RESERVED}. Choose another")


class VolumeMount(SpecModel):
    """Where a volume is mounted in all pods."""

    name: VolumeName
    """The name of the volume in `volumes`."""
    mount_path: Directory
    """The directory at which the volume is mounted."""
    sub_path: RelativePath | None = None
    """The directory or file of the volume to mount, instead of the volume itself."""
    read_only: bool = False
    """Whether the volume is mounted read-only."""

    def _check(self) -> None:
        if re.match(RESERVED_PATHS, self.mount_path):
            problem = f"the mountPath '{self.mount_path}' {_RESERVED}"
            raise invalid(f"{problem}. Mount the volume elsewhere")


def check_mounts(volumes: list[Volume], mounts: list[VolumeMount]) -> None:
    """Raise a validation error if a mount names a volume that is not in `volumes`, or if two mounts
    have the same directory.

    The volumes of the platform are not in the settings of a job. So a job cannot mount them again,
    for example to make a read-only volume writable."""
    known = {volume.name for volume in volumes}
    for mount in mounts:
        if mount.name not in known:
            problem = f"there is no volume '{mount.name}' in volumes"
            raise invalid(f"volumeMounts: {problem}. Add it there")
    _check_directories([mount.mount_path for mount in mounts])


def _check_directories(paths: list[str]) -> None:
    """Raise a validation error if two mount paths, such as /a and /a/, are the same directory. The
    API server accepts such a pod, and then it does not start."""
    written: dict[str, str] = {}
    for path in paths:
        other = written.setdefault(re.sub("/+", "/", path).rstrip("/"), path)
        if other != path:
            problem = f"the mountPaths '{other}' and '{path}' are the same directory"
            raise invalid(f"volumeMounts: {problem}. Remove one of them")


Volumes = Annotated[list[Volume], *keyed("name", 16)]
VolumeMounts = Annotated[list[VolumeMount], *keyed("mountPath", 32)]
