"""The configuration of fetchers, and the parts of a broker that they use."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from odradek.log.background.tasks import RunInThread
from odradek.replication.metadata.image import BrokerMetadata
from odradek.replication.metadata.store import Waiter
from odradek.replication.pauses import run_with_pauses
from odradek.replication.remote import BrokerChannels, Delay
from odradek.replication.replicas.throttle import Throttle

Result = TypeVar("Result")


class FetcherSettings(NamedTuple):
    """The properties of fetchers, with Kafka's defaults."""

    max_wait_ms: int = 500
    """replica.fetch.wait.max.ms"""
    min_bytes: int = 1
    """replica.fetch.min.bytes"""
    partition_max_bytes: int = 1 << 20
    """replica.fetch.max.bytes"""
    response_max_bytes: int = 10 << 20
    """replica.fetch.response.max.bytes"""
    backoff_ms: int = 1000
    """replica.fetch.backoff.ms"""
    timeout_ms: int = 30_000
    """replica.socket.timeout.ms"""


class FetcherTasks(Protocol):
    """Runs the loops of fetchers (`controller.events.Executor` of the server)."""

    def start(self, work: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine until it waits; resume it when its awaitable is complete."""

    def waiter(self) -> Waiter:
        """Return a new waiter."""

    async def pause(self) -> None:
        """Let other work run if this iteration of the reactor has done enough."""


class FetcherParts(NamedTuple):
    """The parts of a broker that fetchers use."""

    broker_id: int
    broker_epoch: Callable[[], int]
    """The epoch of this broker's registration."""
    find_broker: Callable[[int], BrokerMetadata | None]
    """Returns a live broker of the metadata cache."""
    channels: BrokerChannels
    tasks: FetcherTasks
    delay: Delay
    monotonic_ms: Callable[[], int]
    settings: FetcherSettings
    throttle: Throttle
    run_drop_behind: RunInThread
    """Runs the work of `DropBehind`, which may take as long as the disk."""

    async def run_steps(self, steps: Generator[None, None, Result]) -> Result:
        """Run all steps, with other work of the broker between them; return their result."""
        return await run_with_pauses(steps, self.tasks.pause)
