"""Estimates the cost of a job from the prices of the platform."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from batchinference.plan.groups import HEAD_GROUP
from batchinference.rendering import DEVICE_HOUR, running_containers, templates_of
from batchinference.spec.report import PRICES_VARIABLE, PodPrices
from batchinference.text import decimal_text
from batchinference_operator.status.attempts import Attempt, last_attempt
from batchinference_operator.status.job_status import Status, internal, without
from batchinference_operator.status.pod_view import requested_cpus
from batchinference_operator.status.ray_job_view import Object, devices_of

Price = Annotated[Decimal, Field(ge=0, le=10**9, allow_inf_nan=False)]


class Prices(BaseModel):
    """The chart value `prices`."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    currency: Annotated[str, Field(pattern="^([A-Z]{3})?$")] = ""
    """ISO 4217 code. If it is empty, no cost is estimated."""
    cpu_hour: Price = Decimal(0)
    device_hour: Price = Decimal(0)

    def of(self, usage: Status | Attempt) -> Decimal:
        """Return the cost of the usage in the status of a job or in an attempt.

        If an attempt has its own price, its device seconds are priced when they are counted
        (`device_usage`). The status of a job has the sum of these seconds and their cost.
        """
        cpu_seconds = Decimal(usage.get("cpuSeconds", 0))
        device_seconds = usage.get("deviceSeconds", 0)
        device_hour = Decimal(usage.get("choice", {}).get("deviceHour", self.device_hour))
        priced = internal(usage)
        device_seconds -= priced.get("pricedSeconds", 0)
        cost = (cpu_seconds * self.cpu_hour + device_seconds * device_hour) / 3600
        return Decimal(cost + Decimal(priced.get("pricedCost", 0)))


def add_cost(status: Status, prices: Prices) -> Status:
    """Return the status with the cost of all attempts, and the expected total cost if it is known.
    Without a currency, the status has no cost."""
    if not prices.currency:
        return without(status, "cost")
    amount = prices.of(status)
    cost = {"amount": decimal_text(amount), "currency": prices.currency}
    remaining = _remaining_cost(status, prices)
    if remaining is not None:
        cost["forecast"] = decimal_text(amount + remaining)
    return {**status, "cost": cost}


def _remaining_cost(status: Status, prices: Prices) -> Decimal | None:
    """Return the expected cost of the remaining rows, from the cost per row of the last attempt.
    None until this attempt has finished 1 % of all rows, and after the end of the job."""
    progress, last = status.get("progress", {}), last_attempt(status)
    total, rows = progress.get("total", 0), last.get("rows", 0)
    if "completionTime" in status or not rows or not total or rows * 100 < total:
        return None
    return max(0, int(total) - int(progress["rows"])) * prices.of(last) / int(rows)


def add_prices(ray_job: Object, prices: Prices, status: Status) -> None:
    """Add an environment variable to the head of a RayJob, with the prices of the pods and the cost
    of earlier attempts. From this variable, the driver computes the cost in its report."""
    if not prices.currency:
        return
    cluster = ray_job["spec"]["rayClusterSpec"]
    try:
        per_hour = {group: float(prices.of(one)) for group, one in _usage_per_hour(cluster)}
    except (ValueError, AttributeError):  # a patch is invalid; the API server's message says why
        return
    before = float(round(prices.of(status), 4))
    of_pods = PodPrices(currency=prices.currency, perHour=per_hour, before=before)
    variable = {"name": PRICES_VARIABLE, "value": of_pods.model_dump_json(by_alias=True)}
    head = cluster["headGroupSpec"]["template"]["spec"]
    head["containers"][0]["env"].insert(0, variable)


def _usage_per_hour(cluster: Object) -> Iterator[tuple[str, Status]]:
    """Yield the name of each group of a RayCluster, and what one of its pods uses in an hour."""
    for group, _, template in templates_of(cluster):
        containers = running_containers(template["spec"])
        if group == HEAD_GROUP and "autoscalerOptions" in cluster:
            containers.append(cluster["autoscalerOptions"])  # KubeRay adds this container
        devices = devices_of(template["metadata"]["labels"])
        usage = {"cpuSeconds": 3600 * requested_cpus(containers), "deviceSeconds": 3600 * devices}
        price = (template["metadata"].get("annotations") or {}).get(DEVICE_HOUR)
        yield group, {**usage, "choice": {"deviceHour": price}} if price else usage
