"""Run examples/text-embeddings on the cluster of KUBECONFIG: `make quickstart`.

The script starts an S3 server for the input and the output. All objects are in one namespace.
"""

from __future__ import annotations

import sys

import yaml

from support.cluster.deployment import PIPELINE_IMAGE, ROOT
from support.cluster.kubectl import Kubectl, run
from support.cluster.object_store import JOB_ENVIRONMENT, ObjectStore

NAMESPACE = "batchinference-quickstart"
EXAMPLE = ROOT / "examples" / "text-embeddings"


def main() -> None:
    run([sys.executable, str(EXAMPLE / "prepare.py")])
    create = ["kubectl", "create", "namespace", NAMESPACE, "--dry-run=client", "--output=yaml"]
    run(["kubectl", "apply", "--filename", "-"], text=run(create))
    kubectl = Kubectl(NAMESPACE)
    store = ObjectStore(kubectl)
    store.start(PIPELINE_IMAGE)
    text = (EXAMPLE / "job.yaml").read_text()
    for part in ("data", "model", "out"):
        text = text.replace(f"./{part}", store.uri(f"{part}/"))
        if part != "out":
            store.upload(EXAMPLE / part, part)
    job = yaml.safe_load(text)
    job["spec"]["cluster"] = {"env": JOB_ENVIRONMENT}
    kubectl.apply(job)
    name = job["metadata"]["name"]
    print(f"applied. Now: kubectl --namespace {NAMESPACE} get batchinference {name} --watch")


if __name__ == "__main__":
    main()
