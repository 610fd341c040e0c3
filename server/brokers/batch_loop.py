"""A loop that sends requests in batches, one at a time."""

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.task import SchedulerStopped
from twisted.python.failure import Failure

from odradek.server.work.clock import Clock
from odradek.server.work.waits import AsyncWork


class BatchLoop:
    """Sends batches while anything is pending.

    The first batch is sent in the next reactor iteration, and thus contains everything that this iteration adds.

    send_batch: takes what is pending, sends it and handles the response; returns False if nothing is pending
    report_failure: called with an unexpected exception of `send_batch`, after which the loop sends the next batch
    """

    def __init__(
        self, clock: Clock, send_batch: Callable[[], AsyncWork[bool]], report_failure: Callable[[Failure], None]
    ) -> None:
        self._clock = clock
        self._send_batch = send_batch
        self._report_failure = report_failure
        self._is_running = False

    def wake(self) -> None:
        """Begin to send, unless a batch is being sent."""
        if not self._is_running:
            self._is_running = True
            self._clock.callLater(0, self._begin)

    def _begin(self) -> None:
        Deferred.fromCoroutine(self._run()).addErrback(self._fail)

    async def _run(self) -> None:
        while await self._send_batch():
            pass
        self._is_running = False

    def _fail(self, failure: Failure) -> None:
        self._is_running = False
        self._report_failure(failure)
        if not isinstance(failure.value, SchedulerStopped):
            # What was added meanwhile has not woken the loop.
            self.wake()
