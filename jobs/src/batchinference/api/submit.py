"""The function `submit` of the Python API, which submits a job to a cluster."""

from batchinference.api.job import Job, check_is_job
from batchinference.api.jobs_on_cluster import JobHandle, checked_for_cluster
from batchinference.api.kubernetes import Kubernetes
from batchinference.spec.parameters import ParameterValues


def submit(job: Job, *, namespace: str | None = None, context: str | None = None) -> JobHandle:
    """Create or change a job on the cluster of the kubeconfig, and return its handle. By default,
    the context is the current context. The namespace is by default that of the job, or else of the
    context. Raises SpecError if a cluster would refuse the job, and ClusterError."""
    check_is_job(job)
    document = checked_for_cluster(job.to_dict(), ParameterValues())
    cluster = Kubernetes(namespace or job.resource.metadata.namespace, context)
    cluster.apply(document)
    return JobHandle(job.name, cluster)
