"""Entry point of `batchinference-operator`."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import aiohttp
import kopf
from pydantic import ValidationError

from batchinference_operator.controller.cache import Cache
from batchinference_operator.controller.driver_client import DashboardClient
from batchinference_operator.controller.driver_poller import MAX_POLLS, DriverPoller
from batchinference_operator.controller.job_controller import JobController, stores
from batchinference_operator.controller.kopf_handlers import kopf_operator, run_kopf
from batchinference_operator.controller.missed_deletions import resync
from batchinference_operator.controller.notifier import WORKERS
from batchinference_operator.controller.policy_reload import reload_policy
from batchinference_operator.controller.schedule_controller import ScheduleController
from batchinference_operator.kube.api_errors import Refused
from batchinference_operator.kube.api_session import find_credentials, open_session
from batchinference_operator.kube.http import send
from batchinference_operator.kube.kopf_session import KopfLogin
from batchinference_operator.kube.kube_client import KubeClient
from batchinference_operator.kube.leader_election import Leadership, LeadershipLost, LeaseForbidden
from batchinference_operator.kube.rate_limiter import RateLimiter
from batchinference_operator.kube.reflector import Reflector
from batchinference_operator.kube.watch_health import WatchHealth
from batchinference_operator.observability.event_recorder import EventRecorder
from batchinference_operator.observability.http_endpoints import serve_http
from batchinference_operator.observability.logging import configure as configure_log
from batchinference_operator.observability.metrics import Metrics
from batchinference_operator.preflight import ApiUnreachable, NotReady, check_api
from batchinference_operator.reconcile.config import Config
from batchinference_operator.settings import OperatorSettings

SCHEDULE_WORKERS = 2
"""Number of schedules that are reconciled concurrently. For jobs, see `settings.workers`."""
GC_THRESHOLD = 10_000
"""Number of new objects after which Python collects garbage. Python's default costs 4 % of the CPU
time, although most objects are freed without a collection."""
logger = logging.getLogger("batchinference.operator")


def main() -> None:
    """Run the operator until it is stopped."""
    try:
        settings = OperatorSettings()
    except ValidationError as problem:
        sys.exit(f"batchinference-operator cannot start: {problem}")
    configure_log(settings.log_format, settings.log_level)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(operate(settings))
    except (NotReady, LeaseForbidden) as problem:
        logger.critical("cannot start: %s", problem)
        sys.exit(1)
    except LeadershipLost as problem:
        logger.critical("no longer the leader: %s", problem)
        sys.exit(1)


async def operate(settings: OperatorSettings) -> None:
    """Wait until this replica is the leader, and reconcile jobs until SIGTERM. Raises NotReady,
    LeaseForbidden or LeadershipLost."""
    try:
        reconcile_config = settings.for_reconcile()
    except (OSError, ValueError) as problem:
        raise NotReady(str(problem)) from None
    if (task := asyncio.current_task()) is not None:
        # without a handler, the kernel ignores SIGTERM for PID 1; kopf later sets its own handler
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    metrics = Metrics(settings.metrics_namespaces)
    try:
        credentials = find_credentials(settings=kopf.OperatorSettings())
    except (OSError, KeyError, kopf.LoginError) as problem:
        raise NotReady(f"KUBECONFIG cannot be used: {problem}") from None
    if credentials is None:
        raise NotReady("no credentials for the API server. Run in a pod, or set KUBECONFIG")
    session = open_session(credentials, metrics.record_request)
    async with session.aiohttp_session:
        leadership = Leadership(partial(send, session), settings.lease, settings.identity)
        watches = WatchHealth(settings.namespace_list, settings.watch_seconds)
        metrics.leader.set_function(lambda: leadership.is_leader)
        async with serve_http(settings.health_port, leadership, watches, metrics):
            with suppress(ApiUnreachable):  # the election waits for the API server
                await check_api(session, settings.namespace_list)
            work = partial(_run_as_leader, session, settings, reconcile_config, watches, metrics)
            await leadership.lead(work)


async def _run_as_leader(
    session: kopf.AiohttpSession,
    settings: OperatorSettings,
    reconcile_config: Config,
    watches: WatchHealth,
    metrics: Metrics,
) -> None:
    """Reconcile jobs until SIGTERM or until cancelled. Raises NotReady."""
    watches.start()
    unwatched = await check_api(session, settings.namespace_list)
    connector, cookies = aiohttp.TCPConnector(limit=MAX_POLLS), aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=cookies) as drivers:
        api = KubeClient(session, RateLimiter(settings.qps, settings.burst))
        recorder = EventRecorder(api, metrics)
        cache = Cache(reconcile_config)
        dashboard = DashboardClient(drivers, settings.cluster_domain)
        polls = metrics.driver_polls
        poller = DriverPoller(dashboard, count=lambda result: polls.labels(result).inc())
        controller = JobController(api, poller, reconcile_config, recorder, cache)
        metrics.queue_depth.set_function(lambda: len(controller.queue))
        metrics.jobs.set_jobs(cache.summaries)
        metrics.namespaces_unwatched.set_function(lambda: len(watches.lost_namespaces))
        try:
            await controller.prime([n for n in settings.namespace_list if n not in unwatched])
        except Refused as problem:
            raise NotReady(f"jobs cannot be listed: {problem}") from None
        reflectors = _reflectors(api, controller, watches, settings)
        schedules = ScheduleController(api, reconcile_config, recorder)
        login = KopfLogin(watches, metrics.record_request)
        await _run(controller, schedules, reflectors, login, settings)


def _reflectors(
    api: KubeClient, controller: JobController, watches: WatchHealth, settings: OperatorSettings
) -> list[Reflector]:
    """Return the reflectors of RayJobs and pods, which fill the cache of the controller."""
    reflectors = [
        Reflector(api, kind, namespace, store, watches, settings.watch_seconds)
        for kind, store in stores(controller).items()
        for namespace in settings.namespace_list or [""]
    ]

    def is_listed(namespace: str) -> bool:
        return all(each.is_listed for each in reflectors if each.namespace in ("", namespace))

    controller.is_listed, controller.is_refused = is_listed, watches.is_refused
    return reflectors


async def _run(
    controller: JobController,
    schedules: ScheduleController,
    reflectors: Sequence[Reflector],
    login: KopfLogin,
    settings: OperatorSettings,
) -> None:
    """Run kopf and the endless loops. When kopf stops, cancel the loops."""
    namespaces, workers = settings.namespace_list, list[asyncio.Task[None]]()

    def stop() -> None:
        for worker in workers:
            worker.cancel()

    registry = kopf_operator(
        controller, schedules, login, namespaces, watch_seconds=settings.watch_seconds, stop=stop
    )
    loops = [
        *(controller.work() for _ in range(settings.workers)),
        *(schedules.work() for _ in range(SCHEDULE_WORKERS)),
        *(controller.drivers.work() for _ in range(MAX_POLLS)),
        *(controller.notifier.work() for _ in range(WORKERS)),
        *(reflector.run() for reflector in reflectors),
        controller.recorder.work(),
        reload_policy(controller, schedules, settings.policy),
        resync(controller, namespaces),
    ]
    async with asyncio.TaskGroup() as group:
        # created first, because on exit kopf waits for each task that was created after its own
        workers += [group.create_task(each) for each in loops]
        # kopf has its own task, so that a lost Lease ends the workers before kopf has stopped
        group.create_task(run_kopf(registry, namespaces))
