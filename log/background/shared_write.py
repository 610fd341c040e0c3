"""Group commit: a blocking write on a thread, shared by all callers that wait for the same state to be durable."""

import logging
from collections.abc import Callable

from odradek.log.background.tasks import Done, RunInThread
from odradek.protocol.errors import KafkaError

logger = logging.getLogger(__name__)


class SharedWrite:
    """One write at a time. Callers that arrive during a write share the next one, since this one may lack their change.

    `prepare` returns the write that makes the present state durable, or None if it is; an exception that it raises is
    passed to the callers. `ended(error)` is called after each write, before the next begins, and returns what the
    callers get; if it raises, they get the exception. `idle` is called when no write follows. Every caller is answered.

    Flushes of a log, checkpoints of log starts and syncs of new directories are shared writes. After a failure
    `prepare` returns None or raises, because the log or its directory is offline.
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
        """Call `done` when the present state is durable, or with the error that prevents it."""
        if self._next is not None:
            self._next.extend(done)
        else:
            self._begin(list(done))

    def _begin(self, served: list[Done]) -> None:
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
            for done in served:
                done(failure)
            return
        waiting: list[Done] = []
        self._next = waiting

        def finish(error: Exception | None) -> None:
            try:
                result = self._ended(error)
            except Exception as defect:
                logger.exception("the result of a write could not be recorded; please report it")
                result = defect
            self._next = None
            if waiting:
                self._begin(waiting)
            else:
                self._idle()
            for done in served:
                done(result)

        self._run_in_thread(write, finish)
