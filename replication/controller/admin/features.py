"""Finalized features of the cluster (KIP-584).

They are in the metadata store in Kafka 3.9's layout: the node `/feature`, whose version is the features' epoch. A
missing node is created with the levels of a new cluster.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.replication.controller.controller import Controller
from odradek.replication.metadata import znodes
from odradek.replication.metadata.loader import read_node
from odradek.replication.metadata.store import (
    BadVersionError,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    SetData,
    TransactionError,
    Watcher,
)

logger = logging.getLogger(__name__)

PATH: Final = "/feature"
TRANSACTION_VERSION: Final = "transaction.version"
SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {TRANSACTION_VERSION: (0, 2)}
"""Lowest and highest supported level, for each feature that this broker supports completely."""

INITIAL_LEVELS: Final[Mapping[str, int]] = {TRANSACTION_VERSION: 2}
_ENABLED: Final = 1
_NODE_VERSION: Final = 2


class UpgradeType(IntEnum):
    """Kinds of feature updates."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A requested level of a feature. `upgrade_type` may be an unknown number."""

    feature: str
    level: int
    upgrade_type: int


class Features:
    """The finalized levels on this broker.

    levels: by feature; a feature at level 0 is not in it
    epoch: grows with every change
    listeners: called after a change
    """

    __slots__ = ("_levels", "epoch", "listeners")

    def __init__(self) -> None:
        self._levels: dict[str, int] = {}
        self.epoch = -1
        self.listeners: list[Callable[[], None]] = []

    @property
    def levels(self) -> Mapping[str, int]:
        return self._levels

    def level(self, feature: str) -> int:
        """Return a feature's level, 0 if it is not in use."""
        return self._levels.get(feature, 0)

    async def load(
        self, store: MetadataStore, initial: Mapping[str, int] = INITIAL_LEVELS, watch: Watcher | None = None
    ) -> None:
        """Load the levels from the store; a new one gets the `initial` ones. Raises MetadataStoreError."""
        try:
            found = await read_node(store, PATH, _levels_and_epoch, watch)
        except NoNodeError:
            try:
                await store.create(PATH, encode(initial))
            except NodeExistsError:
                logger.debug("another broker has finalized features first")
            found = await read_node(store, PATH, _levels_and_epoch, watch)
        self._take(*found)

    async def update(self, controller: Controller, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Change levels, all or none.

        Raises KafkaError: INVALID_UPDATE_VERSION, NOT_CONTROLLER, FEATURE_UPDATE_FAILED if another broker was faster.
        """
        controller.check_active()
        await controller.request("update features", lambda: self._update(controller, updates, validate_only))

    async def _update(self, controller: Controller, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        levels = dict(self._levels)
        for update in updates:
            self._check(update, controller.broker_id)
            levels[update.feature] = update.level
        levels = {name: level for name, level in levels.items() if level}
        if validate_only or levels == self._levels:
            return
        try:
            (stat,) = await controller.context.write([SetData(PATH, encode(levels), self.epoch)])
        except TransactionError as error:
            if isinstance(error.cause, BadVersionError):
                await self.load(controller.store)
            raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, str(error)) from error
        assert stat is not None
        assert not isinstance(stat, str)
        logger.info("changed features levels=%s epoch=%d", levels, stat.version)
        self._take(levels, stat.version)

    def _check(self, update: FeatureUpdate, broker_id: int) -> None:
        """Check an update as Kafka does, in Kafka's order."""
        why = self._problem(update, broker_id)
        if why is not None:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid update version {update.level} for feature {update.feature}. {why}",
            )

    def _problem(self, update: FeatureUpdate, broker_id: int) -> str | None:
        level, kind = update.level, update.upgrade_type
        if kind not in UpgradeType.__members__.values():
            return "The upgrade type is not known."
        if level < 0:
            return "A feature level cannot be less than 0."
        lowest, highest = SUPPORTED.get(update.feature, (0, 0))
        if not lowest <= level <= highest:
            if not highest:
                return f"Local controller {broker_id} does not support this feature."
            return f"Local controller {broker_id} only supports versions {lowest}-{highest}"
        current = self.level(update.feature)
        if level < current and kind == UpgradeType.UPGRADE:
            return "A lower level needs an upgrade type of safe or unsafe downgrade."
        if level > current and kind != UpgradeType.UPGRADE:
            return "Can't downgrade to a newer version."
        return None

    def _take(self, levels: dict[str, int], epoch: int) -> None:
        self._levels = levels
        self.epoch = epoch
        for listener in self.listeners:
            listener()


def _levels_and_epoch(node: Node) -> tuple[dict[str, int], int]:
    return decode(node.data), node.stat.version


def encode(levels: Mapping[str, int]) -> bytes:
    """Return the content of the node."""
    return znodes.encode(
        {
            "features": {name: {"max_version_level": level} for name, level in levels.items()},
            "version": _NODE_VERSION,
            "status": _ENABLED,
        }
    )


def decode(data: bytes | None) -> dict[str, int]:
    """Return the levels in a node; none while features are disabled (status 0).

    Raises ValueError or KeyError for data that is not in the layout.
    """
    value = znodes.decode(data)
    if int(value["status"]) != _ENABLED:
        return {}
    return {str(name): int(levels["max_version_level"]) for name, levels in value["features"].items()}
