"""Parts of the commands that use a broker's metadata store without the broker: configuration, errors, and the store.

An embedded store can be used while its broker is stopped, also before the first start, which finds what was written.
With `zookeeper.connect` the brokers of the cluster may run.
"""

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from odradek.replication.controller.registration import StartError
from odradek.replication.metadata.store import MetadataStore
from odradek.server.config import BrokerConfig, InvalidConfigError, load_config
from odradek.server.environment import Environment
from odradek.server.membership.embedded import lay_out_store
from odradek.server.network.reactor import install
from odradek.server.store_location import open_store, open_zookeeper_store
from odradek.server.store_tools.errors import UsageError

T = TypeVar("T")

Work = Callable[[MetadataStore, Environment], Coroutine[Any, Any, T]]


def load_store_config(file: str | None, overrides: Sequence[str]) -> BrokerConfig:
    """Return the configuration of the broker whose store is used. Raises UsageError."""
    try:
        return load_config(file, list(overrides), kafka_opts=os.environ.get("KAFKA_OPTS", "")).config
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except InvalidConfigError as error:
        raise UsageError(*map(str, error.errors)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def run_with_store(config: BrokerConfig, work: Work[T]) -> T:
    """Run a coroutine function on the store of a broker; return its result, or raise its error.

    It runs the reactor, which is possible once in a process. Raises StartError, MetadataStoreError; StoreLockedError if
    the broker is running.
    """
    # Imported here because it would install Twisted's default reactor.
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    reactor = install()
    environment = Environment(reactor)
    outcome: list[T | Failure] = []

    def end(result: T | Failure) -> None:
        outcome.append(result)
        reactor.stop()

    def begin() -> None:
        Deferred.fromCoroutine(_with_store(config, environment, work)).addBoth(end)

    reactor.callWhenRunning(begin)
    reactor.run()
    if not outcome:
        raise StartError("interrupted; it is unknown whether the change was made")
    result = outcome[0]
    if isinstance(result, Failure):
        result.raiseException()
    return result


async def _with_store(config: BrokerConfig, environment: Environment, work: Work[T]) -> T:
    directories = [environment.absolute_path(directory) for directory in config.data_dirs]
    begins_adoption = False
    if config.zookeeper_connect:
        store: MetadataStore = await open_zookeeper_store(environment, config)
    else:
        store, begins_adoption = await open_store(environment, directories, adopts=config.log_dirs_adopt)
    try:
        await lay_out_store(environment, directories, store, begins_adoption=begins_adoption)
        return await work(store, environment)
    finally:
        await store.close()
