"""Reloads the policy of the platform from its file."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from batchinference.rendering.policy import PlatformPolicy
from batchinference_operator.controller.job_controller import JobController
from batchinference_operator.controller.schedule_controller import ScheduleController

RELOAD_SECONDS = 10.0
"""Seconds between reads. The kubelet updates the file about a minute after the ConfigMap."""
logger = logging.getLogger("batchinference.operator")


async def reload_policy(
    controller: JobController, schedules: ScheduleController, read: Callable[[], PlatformPolicy]
) -> None:
    """Reload the policy every RELOAD_SECONDS until cancelled.

    The policy applies to attempts that have not started, templates of schedules, and notifications.
    If the file cannot be read or is invalid, the last policy remains in effect.
    """
    failure = ""
    while True:
        try:
            policy, failure = read(), ""
        except (OSError, ValueError) as error:
            if str(error) != failure:
                failure = str(error)
                logger.error("the policy is not reloaded: %s", failure)
        else:
            if policy != controller.config.policy:
                controller.config = replace(controller.config, policy=policy)
                schedules.change_config(controller.config)
                logger.info("the policy has changed")
        await asyncio.sleep(RELOAD_SECONDS)
