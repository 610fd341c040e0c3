"""Group commit: a blocking write on a thread, shared by all callers that wait for the same state to be durable."""

import logging
from collections.abc import Callable

from odradek.log.background.tasks import Done, RunInThread
from odradek.protocol.errors import KafkaError

logger = logging.getLogger(__name__)


class SharedWrite:
    """One write at a time. Requests during a write share the next one, because this one may lack their change.

    `prepare` returns the write that makes the current state durable, or None if it is durable; an exception from it is
    passed to the callers. `ended(error)` is called after each write, before the next begins, and returns the error to
    pass to the callers; if it raises, they get the exception. `idle` is called when no write follows. Every caller is
    called back.

    Flushes of a log, checkpoints of offsets, records of producer ids and syncs of new directories are shared writes.
    After a disk failure the writes do nothing or raise, because the log or its directory is offline.
    """

    __slots__ = ("_ended", "_idle", "_next", "_prepare", "_run_in_thread")

    def __init__(
        self,
        prepare: Callable[[], Callable[[], None] | None],
        run_in_thread: RunInThread,
        ended: Callable[[Exception | None], Exception | None],
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._prepare = prepare
        self._run_in_thread = run_in_thread
        self._ended = ended
        self._idle = idle
        self._next: list[Done] | None = None

    def request(self, *done: Done) -> None:
        """Call `done` when the current state is durable, or with the error that prevents it."""
        if self._next is not None:
            self._next.extend(done)
        else:
            self._begin(list(done))

    def _begin(self, callers: list[Done]) -> None:
        failure: Exception | None = None
        write = None
        try:
            write = self._prepare()
        except KafkaError as error:
            failure = error
        except Exception as error:
            logger.exception("a write could not be prepared; please report it")
            failure = error
        if write is None:
            self._idle()
            _call_back(callers, failure)
            return
        next_callers: list[Done] = []
        self._next = next_callers

        def finish(error: Exception | None) -> None:
            try:
                result = self._ended(error)
            except Exception as failure:
                logger.exception("the result of a write could not be recorded; please report it")
                result = failure
            self._next = None
            if next_callers:
                self._begin(next_callers)
            else:
                self._idle()
            _call_back(callers, result)

        self._run_in_thread(write, finish)


def _call_back(callers: list[Done], result: Exception | None) -> None:
    for done in callers:
        try:
            done(result)
        except Exception:
            # The other callers wait for the same write and get its result.
            logger.exception("a caller of a write failed with its result; please report it")
