"""Names and labels of the objects that belong to a job."""

from __future__ import annotations

from dataclasses import dataclass

from batchinference.spec.job import GROUP

NAME_LABEL = f"{GROUP}/name"
"""Label that names the BatchInference an object belongs to."""
ATTEMPT_LABEL = f"{GROUP}/attempt"
"""Label with the number of the attempt."""
GPUS_LABEL = f"{GROUP}/gpus"
"""Label of a pod with the number of its GPUs, whatever resource they are to Kubernetes."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "batchinference-operator"
UID_LENGTH = 8


@dataclass(frozen=True)
class Names:
    """Names of the objects of one attempt at a job.

    ConfigMap and Secret carry the beginning of the job's uid: a job that is deleted and created
    anew never meets objects of its former self.
    """

    job: str
    uid: str
    attempt: int

    @property
    def ray_job(self) -> str:
        return f"{self.job}-{self.attempt}"

    @property
    def config_map(self) -> str:
        return f"{self.job}-{self.uid[:UID_LENGTH]}-job"

    @property
    def secret(self) -> str:
        return f"{self.job}-{self.uid[:UID_LENGTH]}-{self.attempt}-token"

    @property
    def labels(self) -> dict[str, str]:
        return {MANAGED_BY: MANAGER, NAME_LABEL: self.job}
