"""SCRAM users in the metadata store of a broker that is stopped, or of a cluster with ZooKeeper whose brokers may run.

The first user can be added before the first start.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from odradek.replication.controller.configs.entity_changes import change_entity
from odradek.replication.controller.registration import StartError
from odradek.replication.metadata.entity_configs import EntityConfigs
from odradek.replication.metadata.image import Configs
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment
from odradek.server.security.sasl.scram_credentials import SCRAM_MECHANISMS, make_credential, make_salt
from odradek.server.security.sasl.scram_users import describe_users, put_credential, user_path
from odradek.server.store_tools.errors import StoreToolError
from odradek.server.store_tools.store import run_with_store
from odradek.server.stores.sqlite_file import StoreLockedError

T = TypeVar("T")

_NUMBERS: Final = {mechanism.number: name for name, mechanism in SCRAM_MECHANISMS.items()}


_LOCKED: Final = "the broker is running, with its metadata store open: stop it, or use --bootstrap-server"


def put_user(
    config: BrokerConfig,
    user: str,
    password: str,
    mechanisms: Sequence[str],
    iterations: int,
    *,
    must_exist: bool = False,
) -> None:
    """Add credentials of a user, or replace them; with `must_exist` only those that exist. Raises StoreToolError."""

    async def work(store: MetadataStore, environment: Environment) -> None:
        def change(configs: Configs) -> Configs:
            selected = [name for name in mechanisms if name in configs or not must_exist]
            if not selected:
                raise _no_credential(user, mechanisms)
            for name in selected:
                mechanism, salt = SCRAM_MECHANISMS[name], make_salt(environment.random_source.getrandbits)
                salted_password = mechanism.salt_password(password, salt, iterations)
                credential = make_credential(mechanism, salt, salted_password, iterations)
                configs = put_credential(configs, mechanism, credential)
            return configs

        await change_entity(store, user_path(user), change, environment.now_ms)

    _run(config, work)


def remove_user(config: BrokerConfig, user: str, mechanisms: Sequence[str]) -> None:
    """Remove credentials of a user. Raises StoreToolError."""

    async def work(store: MetadataStore, environment: Environment) -> None:
        def change(configs: Configs) -> Configs:
            if not configs.keys() & set(mechanisms):
                raise _no_credential(user, mechanisms)
            return {name: value for name, value in configs.items() if name not in mechanisms}

        await change_entity(store, user_path(user), change, environment.now_ms)

    _run(config, work)


def list_users(config: BrokerConfig) -> dict[str, dict[str, int]]:
    """Return the users, with the iterations of each of their mechanisms. Raises StoreToolError."""

    async def work(store: MetadataStore, environment: Environment) -> dict[str, dict[str, int]]:
        entities = EntityConfigs(store, lambda description, follow: None)
        await entities.start()
        return {
            described.user: {_NUMBERS[number]: count for number, count in described.iterations.items()}
            for described in describe_users(entities.configs, [])
        }

    return _run(config, work)


def _no_credential(user: str, mechanisms: Sequence[str]) -> StoreToolError:
    return StoreToolError(f"user {user} has no credential of {' or '.join(sorted(mechanisms))}")


def _run(config: BrokerConfig, work: Callable[[MetadataStore, Environment], Coroutine[Any, Any, T]]) -> T:
    try:
        return run_with_store(config, work)
    except StoreLockedError:
        raise StoreToolError(_LOCKED) from None
    except (MetadataStoreError, StartError) as error:
        raise StoreToolError(str(error)) from None
