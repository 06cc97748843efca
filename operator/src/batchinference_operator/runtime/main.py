"""The entry point of `batchinference-operator`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

import aiohttp
import kopf
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from pydantic import ValidationError

from batchinference.rendering import MANAGER
from batchinference_operator.runtime.api_server import ApiServer
from batchinference_operator.runtime.cache import Cache
from batchinference_operator.runtime.controller import Controller
from batchinference_operator.runtime.driver import Dashboard
from batchinference_operator.runtime.endpoints import served
from batchinference_operator.runtime.exchange import USER_AGENT
from batchinference_operator.runtime.gateway import Refused
from batchinference_operator.runtime.handlers import configure, register
from batchinference_operator.runtime.logs import configure as configure_log
from batchinference_operator.runtime.metrics import Metrics
from batchinference_operator.runtime.polling import SLOTS, DriverPolls
from batchinference_operator.runtime.preflight import NotReady, check_api
from batchinference_operator.runtime.rate import Rate
from batchinference_operator.runtime.recorder import Recorder
from batchinference_operator.runtime.resync import resync
from batchinference_operator.runtime.settings import OperatorSettings
from batchinference_operator.runtime.signals import Signals
from batchinference_operator.runtime.watches import Login, Watches

logger = logging.getLogger("batchinference.operator")


def main() -> None:
    try:
        settings = OperatorSettings()
    except ValidationError as problem:
        sys.exit(f"batchinference-operator cannot start: {problem}")
    configure_log(settings.log_format, settings.log_level)
    try:
        asyncio.run(operate(settings))
    except NotReady as problem:
        logger.critical("cannot start: %s", problem)
        sys.exit(1)


async def operate(settings: OperatorSettings) -> None:
    """Run the operator until SIGTERM. Raises NotReady."""
    try:
        decided = settings.for_reconcile()
    except (OSError, ValueError) as problem:
        raise NotReady(str(problem)) from None
    metrics = Metrics()
    client = ApiClient(await _connection(2 * settings.workers))
    client.user_agent = USER_AGENT
    async with client, aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        left_out = await check_api(client, settings.namespace_list)
        gateway = ApiServer(client, metrics.asked, Rate(settings.qps, settings.burst))
        signals = Signals(metrics, Recorder(gateway, metrics))
        cache = Cache(settings=decided)
        polls = DriverPolls(Dashboard(session, settings.cluster_domain), count=metrics.polled)
        controller = Controller(gateway, polls, decided, cache, signals=signals)
        metrics.of_operator(controller.queue, controller.cache)
        watches = Watches(settings.namespace_list, settings.watch_seconds)
        metrics.of_watches(watches)
        async with served(settings.health_port, watches, metrics):
            await _learn(controller, settings, left_out)
            await _run(controller, polls, Login(watches, metrics), settings)


async def _learn(
    controller: Controller, settings: OperatorSettings, left_out: Sequence[str]
) -> None:
    """List all jobs before the watches start, so that no watch reports an older state."""
    namespaces = [name for name in settings.namespace_list if name not in left_out]
    try:
        await controller.learn(namespaces)
    except Refused as problem:
        raise NotReady(f"jobs cannot be listed: {problem}") from None


async def _run(
    controller: Controller, polls: DriverPolls, login: Login, settings: OperatorSettings
) -> None:
    registry = kopf.OperatorRegistry()
    register(registry, controller, login)
    kopf_settings = kopf.OperatorSettings()
    clusterwide = not settings.namespace_list
    configure(kopf_settings, clusterwide=clusterwide, watch_seconds=settings.watch_seconds)
    async with asyncio.TaskGroup() as group:
        # started before kopf, which waits on exit for each task that was created after it
        workers = [group.create_task(controller.work()) for _ in range(settings.workers)]
        workers += [group.create_task(polls.work()) for _ in range(SLOTS)]
        workers.append(group.create_task(controller.signals.work()))
        workers.append(group.create_task(resync(controller, settings.namespace_list)))
        try:
            await kopf.operator(
                registry=registry,
                settings=kopf_settings,
                namespaces=settings.namespace_list,
                clusterwide=clusterwide,
                standalone=True,
                # else kopf looks up the user's name, and the user has none; its type is not public
                identity=MANAGER,  # type: ignore[arg-type]
            )
        finally:
            for worker in workers:
                worker.cancel()


async def _connection(pool: int) -> Configuration:
    """Return the configuration of the pod's service account, or of kubeconfig outside a cluster."""
    configuration = Configuration()
    configuration.connection_pool_maxsize = pool
    # else each request looks for a .netrc, in a thread; the configuration names the proxy
    configuration.client_session_kwargs = {"trust_env": False}
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    return configuration
