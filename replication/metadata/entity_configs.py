"""Configurations of users, client ids and IP addresses (SCRAM credentials, quotas), and of client metrics.

Source: Kafka 3.9's DynamicConfigManager and `kafka-configs`. An entity is named by its path below /config, with
percent-encoded names: `users/alice`, `users/<default>`, `users/alice/clients/app`, `clients/app`, `ips/10.0.0.1`,
`client-metrics/all`. Any broker writes them, and a notice names the entity that the others have to read.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from odradek.replication.metadata import znodes
from odradek.replication.metadata.change_notices import Post, make_config_notices
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.loader import get_children_if_any, read_nodes
from odradek.replication.metadata.store import MetadataStore, Node, WatchEvent

logger = logging.getLogger(__name__)

CONFIG_ROOT: Final = "/config"
USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
CLIENT_METRICS: Final = "client-metrics"
_KINDS: Final = (USERS, CLIENTS, IPS)

EntityListener = Callable[[Mapping[str, Configs]], None]
"""Receives the changed entities, by path; a removed one has an empty configuration."""


class EntityConfigs:
    """The configurations of all entities of some kinds that have one, by path. They must not be changed.

    listeners: called after each change, and after `start` with all entities
    changes: the parent of the notices
    """

    def __init__(
        self,
        store: MetadataStore,
        post: Post,
        kinds: Sequence[str] = _KINDS,
        changes: str = znodes.CONFIG_CHANGES,
    ) -> None:
        self.configs: dict[str, Configs] = {}
        self.listeners: list[EntityListener] = []
        self._store = store
        self._post = post
        self._kinds = tuple(kinds)
        self._notices = make_config_notices(store, self._on_notices, logging.DEBUG, changes)

    async def start(self) -> None:
        """Load all entities and watch the notices; call it again in a new session. Raises MetadataStoreError."""
        if self._store.is_shared:
            await self._notices.skip()
        found = await _load_all(self._store, self._kinds)
        removed: dict[str, Configs] = {path: {} for path in self.configs.keys() - found.keys()}
        self._take({**found, **removed})

    async def follow(self) -> None:
        """Read the entities to which new notices point; call it again if it failed. Raises MetadataStoreError."""
        changed: dict[str, Configs] = {}
        for path in await self._notices.read():
            if path.partition("/")[0] in self._kinds:
                node_path = f"{CONFIG_ROOT}/{path}"
                changed[path] = (await read_nodes(self._store, {node_path: decode_entity})).get(node_path, {})
        self._take(changed)
        self._notices.finish()

    def put(self, path: str, configs: Configs) -> None:
        """Publish a configuration that this broker has written."""
        self._take({path: configs})

    def _on_notices(self, event: WatchEvent) -> None:
        self._post(f"configurations of {', '.join(self._kinds)} changed", self.follow)

    def _take(self, found: Mapping[str, Configs]) -> None:
        changed = {path: configs for path, configs in found.items() if configs != self.configs.get(path, {})}
        for path, configs in changed.items():
            if configs:
                self.configs[path] = configs
            else:
                self.configs.pop(path, None)
        if changed:
            for listener in self.listeners:
                listener(changed)


async def _load_all(store: MetadataStore, kinds: Sequence[str]) -> dict[str, Configs]:
    """Return the configurations of all entities that have a node."""
    paths = [
        f"{CONFIG_ROOT}/{kind}/{name}"
        for kind in kinds
        for name in await get_children_if_any(store, f"{CONFIG_ROOT}/{kind}")
    ]
    of_users = [f"{path}/{CLIENTS}" for path in paths if path.startswith(f"{CONFIG_ROOT}/{USERS}/")]
    for parent in of_users:
        paths += [f"{parent}/{name}" for name in await get_children_if_any(store, parent)]
    found = await read_nodes(store, dict.fromkeys(paths, decode_entity))
    return {path.removeprefix(f"{CONFIG_ROOT}/"): configs for path, configs in found.items() if configs}


def decode_entity(node: Node) -> Configs:
    """Decode the configuration in a node. Raises ValueError, AttributeError."""
    # Kafka creates the node of a user without data if only its clients have a configuration.
    return znodes.decode_config(node.data) if node.data else {}
