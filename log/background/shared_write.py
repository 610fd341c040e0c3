"""Group commit: a blocking write on a thread, shared by all callers that wait for the same state to be durable."""

from collections.abc import Callable

from odradek.log.background.tasks import Done, RunInThread


class SharedWrite:
    """One write at a time. Callers that arrive during a write share the next one, since this one may lack their change.

    `prepare` returns the write that makes the present state durable, None if it is. `on_failure` gets the error of a
    write before its callers do.
    """

    def __init__(
        self,
        prepare: Callable[[], Callable[[], None] | None],
        run_in_thread: RunInThread,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._prepare = prepare
        self._run_in_thread = run_in_thread
        self._on_failure = on_failure
        self._next: list[Done] | None = None

    def request(self, done: Done) -> None:
        """Call `done` when the state of now is durable, or with the error that prevents it."""
        if self._next is not None:
            self._next.append(done)
        else:
            self._begin([done])

    def _begin(self, served: list[Done]) -> None:
        write = self._prepare()
        if write is None:
            for done in served:
                done(None)
            return
        waiting: list[Done] = []
        self._next = waiting

        def finish(error: Exception | None) -> None:
            if error is not None:
                self._on_failure(error)
            self._next = None
            if waiting:
                self._begin(waiting)
            for done in served:
                done(error)

        self._run_in_thread(write, finish)
