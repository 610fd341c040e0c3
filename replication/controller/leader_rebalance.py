"""Regular returns of leadership to preferred replicas."""

import logging
from typing import Final

from odradek.protocol.errors import KafkaError
from odradek.replication.controller.context import ControllerRole
from odradek.replication.controller.controller import Controller
from odradek.replication.metadata.broker_configs import BrokerConfigs
from odradek.replication.metadata.store import MetadataStoreError
from odradek.replication.remote import Delay

logger = logging.getLogger(__name__)

_TICK_MS: Final = 5000
"""Interval at which it is determined whether a check is due, and longest time from an election to the first check."""


class LeaderRebalance:
    """Regular returns of leadership to preferred replicas (`auto.leader.rebalance.enable`).

    The first check is made within 5 s after this broker became the controller. `delay` waits for a number of ms.
    """

    def __init__(self, controller: Controller, configs: BrokerConfigs, delay: Delay) -> None:
        self._controller = controller
        self._configs = configs
        self._delay = delay

    async def run(self) -> None:
        """Check for imbalance until the broker stops."""
        controller = self._controller
        epoch, remaining_ms = 0, 0
        while controller.context.role is not ControllerRole.STOPPED:
            await self._delay(_TICK_MS)
            if not controller.is_active:
                continue
            remaining_ms -= _TICK_MS
            if controller.epoch == epoch and remaining_ms > 0:
                continue
            current = self._configs.current
            epoch, remaining_ms = controller.epoch, 1000 * int(current.value("leader.imbalance.check.interval.seconds"))
            if current.value("auto.leader.rebalance.enable"):
                await self._check(int(current.value("leader.imbalance.per.broker.percentage")))

    async def _check(self, max_imbalance_percent: int) -> None:
        try:
            await self._controller.rebalance_leaders(max_imbalance_percent)
        except (KafkaError, MetadataStoreError) as error:
            logger.warning("leaders could not be rebalanced; the next check repeats it error=%s", error)
        except Exception:
            logger.exception("leaders could not be rebalanced; please report it")
