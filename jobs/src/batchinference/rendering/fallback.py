"""Computes the choices of device types and capacity of a job. Each attempt uses one choice."""

from decimal import Decimal
from itertools import product

from batchinference.plan import WorkerGroup, plan_for_cluster
from batchinference.plan.stages import profiles_of
from batchinference.rendering.devices import device_count
from batchinference.spec.cluster import Cluster
from batchinference.spec.job import BatchInference
from batchinference.spec.profiles import Profile
from batchinference.spec.status import Choice
from batchinference.spec.steps import Step


def choices_of(job: BatchInference) -> list[Choice]:
    """Return the choices of a job with complete cluster settings, in the order of their use. Empty
    if the job requests no type of device or capacity. Raises SpecError if the job cannot be
    planned."""
    numbers = _combinations(job)
    return [_choice(with_choice(job, number), number, len(numbers)) for number in numbers]


def with_choice(job: BatchInference, number: int) -> BatchInference:
    """Return the job with only the devices and the capacity of choice `number`. If the job has
    fewer choices, the last choice is used."""
    if not (pairs := _combinations(job)):
        return job
    capacity, index = pairs[min(number, len(pairs))]
    spec, fallback = job.spec, job.spec.cluster.fallback
    fallback = fallback.model_copy(update={"capacity_types": [capacity] if capacity else []})
    return job.with_spec(
        cluster=spec.cluster.model_copy(update={"fallback": fallback}),
        steps=[_with_type(step, index) for step in spec.steps],
    )


def _combinations(job: BatchInference) -> dict[int, tuple[str | None, int]]:
    """Return the choices by number. Each is a capacity type, and an index into `acceleratorType` of
    each step."""
    asked = [step.resources.accelerator_types for step in job.spec.steps if step.resources]
    longest = max((len(types) for types in asked if types), default=0)
    capacity: list[str | None] = [*job.spec.cluster.fallback.capacity_types]
    pairs = product(capacity or [None], range(max(1, longest))) if capacity or longest else ()
    return dict(enumerate(pairs, start=1))


def _with_type(step: Step, index: int) -> Step:
    """Return the step with only the type of device at this index, or with the last type."""
    types = step.resources.accelerator_types if step.resources else None
    if step.resources is None or not types:
        return step
    update = {"accelerator_types": [types[min(index, len(types) - 1)]]}
    return step.model_copy(update={"resources": step.resources.model_copy(update=update)})


def _choice(job: BatchInference, number: int, choices: int) -> Choice:
    """Return the description of a choice. `job` has only this choice."""
    asked = (step.resources for step in job.spec.steps if step.resources)
    types = dict.fromkeys(each.accelerator_type for each in asked if each.accelerator_type)
    cluster = job.spec.cluster
    return Choice(
        number=number,
        choices=choices,
        acceleratorTypes=[*types],
        capacityType=next(iter(cluster.fallback.capacity_types), None),
        deviceHour=_mean_price(job),
        after=cluster.fallback.after if number < choices else None,
    )


def _mean_price(job: BatchInference) -> str | None:
    """Return the mean price of a device per hour, weighted by the maximum number of devices in each
    group. None without devices, or if a device has no price."""
    cluster, groups = job.spec.cluster, plan_for_cluster(job.spec).groups
    devices = {one: one.max * device_count(one, cluster.profiles) for one in groups}
    prices = {one: device_hour(one, cluster) for one, number in devices.items() if number}
    known = [price * devices[one] for one, price in prices.items() if price is not None]
    if not prices or len(known) < len(prices):
        return None
    return price_text(sum(known, Decimal()) / sum(devices.values()))


def price_text(price: Decimal) -> str:
    """Return a price in the format of the API, with at most nine decimal places."""
    return f"{price:.9f}".rstrip("0").rstrip(".")


def device_hour(group: WorkerGroup, cluster: Cluster) -> Decimal | None:
    """Return the price of a device of a worker group per hour; None if no profile has one."""
    of_group = profiles_of(group.gpus, group.custom, group.accelerator, cluster.profiles).values()
    price = next((Decimal(one.device_hour) for one in of_group if one.device_hour), None)
    capacity = capacity_profile(cluster)
    factor = 1.0 if capacity is None or capacity.price_factor is None else capacity.price_factor
    return None if price is None else price * Decimal(str(factor))


def capacity_profile(cluster: Cluster) -> Profile | None:
    """Return the profile of the first capacity type; None if there is none."""
    return cluster.profiles.get(next(iter(cluster.fallback.capacity_types), ""))
