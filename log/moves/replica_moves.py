"""All moves of a broker: their start, steps and end."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from odradek.log.background.tasks import SHORTAGE_RETRY_MS, RunInThread, Schedule
from odradek.log.management.log_table import Key
from odradek.log.moves.move import MoveParts, ReplicaMove
from odradek.log.moves.steps import MoveSteps, Wait
from odradek.log.partition_log import PartitionLog
from odradek.log.storage.filesystem import LogDirFailure, ShortageError
from odradek.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

_SLOTS: Final = 4
_THROTTLE_POLL_MS: Final = 100
_RUNS_PER_TURN: Final = 20


class ReplicaMoves:
    """Runs moves, a few at a time. The log manager reports changes of the current logs.

    A move occupies one of a few slots while it runs or waits for a thread, and none while it waits for a time or for
    the throttle. Throttled moves continue in turn, so that a small one ends before large ones that began earlier.
    """

    def __init__(self, parts: MoveParts, schedule: Schedule, run_in_thread: RunInThread) -> None:
        self._parts = parts
        self._schedule = schedule
        self._run_in_thread = run_in_thread
        # Moves that have begun, with and without a slot.
        self._running: dict[Key, _Run] = {}
        # Moves that have not begun, in the order of their requests.
        self._waiting: dict[Key, ReplicaMove] = {}
        # Runs without a slot: those that can continue, and those that wait for the throttle.
        self._ready: deque[_Run] = deque()
        self._throttled: deque[_Run] = deque()
        self._free_slots = _SLOTS
        self._is_filling = False
        self._is_fill_scheduled = False
        self._is_closed = False

    def begin(self, key: Key) -> None:
        """Begin, or resume, to move a log to the directory of its future log."""
        table = self._parts.table
        move = ReplicaMove(key, table.logs[key], table.future_logs[key], self._parts)
        logger.info("moving replica from=%s to=%s", move.current.directory, move.future.log_directory)
        self._parts.cleaner.paused.add(key)
        self._waiting[key] = move
        self._fill_slots()

    def cancel(self, key: Key) -> None:
        """End the move of a log, if there is one, and remove the future log."""
        self._stop(key, is_removed=True)

    def deleted(self, key: Key) -> None:
        """End the move of a log that was deleted: another log of that name may be created in any log directory."""
        self.cancel(key)
        run = self._running.get(key)
        if run is not None and run.move.is_replaced:
            run.move.is_cancelled = True
            self._discard(run.move.current, run.move.retire_current)

    def truncated(self, key: Key, offset: int) -> None:
        """Truncate the future log of a log that was truncated to `offset`."""
        for move in self._moves_of(key):
            move.truncated(offset)

    def is_ending(self, key: Key) -> bool:
        """Return whether a log has been moved, and the directory that it left is not removed yet."""
        return key in self._running and self._running[key].move.is_replaced

    def directory_failed(self, path: str) -> None:
        """End all moves from and to a log directory that is offline. The next start finds the future logs."""
        for key, future in list(self._parts.table.future_logs.items()):
            current = self._parts.table.logs.get(key)
            if current is None or future.log_directory == path:
                logger.error(
                    "a move ends, because a log directory is offline; the next start resumes it future_log=%s",
                    future.directory,
                )
                self._stop(key, is_removed=False)

    def close(self) -> None:
        """Run no further step, and remove marks. Blocks. The next start resumes the moves.

        A mark that a thread is writing at this moment may remain. Then the next start does not serve the log if another
        log directory is offline.
        """
        self._is_closed = True
        for run in self._running.values():
            if run.steps is not None and not run.is_advancing:
                run.steps.close()
            move = run.move
            if move.is_marked and not move.is_replaced and move.current.failure is None:
                try:
                    move.unmark()
                except (LogDirFailure, ShortageError) as error:
                    self._parts.log_dirs.work_failed(move.current.log_directory, error)

    def _moves_of(self, key: Key) -> list[ReplicaMove]:
        run = self._running.get(key)
        moves = (None if run is None else run.move, self._waiting.get(key))
        return [move for move in moves if move is not None and not move.is_replaced]

    def _stop(self, key: Key, *, is_removed: bool) -> None:
        future = self._parts.table.remove_future(key)
        if future is None:
            return
        for move in self._moves_of(key):
            move.is_cancelled = True
        self._waiting.pop(key, None)
        run = self._running.get(key)
        if run is None or run.steps is None:
            # Otherwise the end of its steps does this.
            self._parts.cleaner.paused.discard(key)
        if run is not None and run.move.future is future:
            # Its work in a thread uses the directory.
            run.is_removed = is_removed
            if not run.is_in_thread:
                self._advance(run, None)
        elif is_removed:
            self._discard(future, partial(self._parts.retirement.discard, future))

    def _discard(self, log: PartitionLog, discard: Callable[[], None]) -> None:
        """Rename the directory of a log that is not served for removal, later if a resource is short."""
        path = log.directory
        try:
            discard()
        except ShortageError as error:
            logger.error("cannot remove a directory that a move left; retrying later directory=%s: %s", path, error)
            self._schedule.once(SHORTAGE_RETRY_MS, partial(self._discard_again, log, path, discard))
        except LogDirFailure as failure:
            logger.error("cannot remove a directory that a move left directory=%s: %s", path, failure)

    def _discard_again(self, log: PartitionLog, path: str, discard: Callable[[], None]) -> None:
        """Retry to rename a directory, unless it was renamed as stray, and another log has its name now."""
        parts, key = self._parts, (log.topic, log.partition)
        served = parts.table.logs.get(key)
        is_used = path in (parts.table.offline.get(key), None if served is None else served.directory)
        is_online = parts.log_dirs.by_path[log.log_directory].failure is None
        if is_online and not is_used and not self._is_closed and parts.fs.exists(path):
            self._discard(log, discard)

    # Slots

    def _fill_slots(self) -> None:
        """Continue runs, and begin waiting moves, while there are free slots; a few in each turn of the reactor."""
        if self._is_filling or self._is_closed:
            return
        self._is_filling = True
        count = 0
        try:
            while self._free_slots and count < _RUNS_PER_TURN and (run := self._take_next()) is not None:
                count += 1
                run.has_slot = True
                self._free_slots -= 1
                self._advance(run, None)
        finally:
            self._is_filling = False
        if count == _RUNS_PER_TURN:
            self._fill_later(0)
        elif self._throttled and self._free_slots:
            self._fill_later(_THROTTLE_POLL_MS)

    def _fill_later(self, delay_ms: int) -> None:
        if not self._is_fill_scheduled:
            self._is_fill_scheduled = True
            self._schedule.once(delay_ms, self._fill_scheduled)

    def _fill_scheduled(self) -> None:
        self._is_fill_scheduled = False
        self._fill_slots()

    def _take_next(self) -> "_Run | None":
        """Return the next run for a free slot. A partition's last move may still have to retire its old directory."""
        if (run := _pop_running(self._ready)) is not None:
            return run
        for key, move in self._waiting.items():
            if key not in self._running:
                del self._waiting[key]
                run = self._running[key] = _Run(move)
                return run
        if self._throttled and not self._parts.throttle.is_exceeded():
            return _pop_running(self._throttled)
        return None

    def _release_slot(self, run: "_Run") -> None:
        if run.has_slot:
            run.has_slot = False
            self._free_slots += 1
            self._fill_slots()

    def _wake(self, run: "_Run") -> None:
        self._ready.append(run)
        self._fill_slots()

    def _advance(self, run: "_Run", error: Exception | None) -> None:
        """Run steps until the move waits, or ends. A `run_in_thread` that does not wait calls it recursively."""
        run.results.append(error)
        if run.is_advancing:
            return
        run.is_advancing = True
        while run.results and run.steps is not None:
            self._run_step(run, run.steps, run.results.pop())
        run.is_advancing = False

    def _run_step(self, run: "_Run", steps: MoveSteps, error: Exception | None) -> None:
        run.is_in_thread = False
        if self._is_closed:
            return
        if run.move.is_cancelled:
            self._end(run, steps)
            return
        try:
            step = next(steps) if error is None else steps.throw(error)
        except StopIteration:
            self._end(run, steps)
        except Exception as failure:
            self._fail(run, failure)
            self._end(run, steps)
        else:
            if step is Wait.THROTTLE:
                self._throttled.append(run)
                self._release_slot(run)
            elif isinstance(step, int):
                self._schedule.once(step, partial(self._wake, run))
                self._release_slot(run)
            else:
                run.is_in_thread = True
                self._run_in_thread(step, lambda result: self._advance(run, result))

    def _fail(self, run: "_Run", error: Exception) -> None:
        """End a move that cannot continue. The log is served as before."""
        move = run.move
        if isinstance(error, LogDirFailure):
            # Ends the moves from and to the directory, this one included.
            self._parts.log_dirs.fail(error.directory, error)
        elif move.is_replaced:
            logger.error(
                "a replica was moved, but its old directory %s is not removed; please report it",
                move.current.directory,
                exc_info=error,
            )
        else:
            logger.error(
                "cannot move replica from=%s to=%s: %s; it remains in its directory, request the move again",
                move.current.directory,
                move.future.log_directory,
                error,
                exc_info=None if isinstance(error, KafkaError) else error,
            )
        future_logs = self._parts.table.future_logs
        if not move.is_cancelled and not move.is_replaced and future_logs.get(move.key) is move.future:
            self._parts.table.remove_future(move.key)
            run.is_removed = not isinstance(error, LogDirFailure)

    def _end(self, run: "_Run", steps: MoveSteps) -> None:
        """End a run: its steps release what they hold, and its future log is removed if it is not needed.

        No other move of the partition begins before the mark of this one is removed.
        """
        move = run.move
        run.steps = None
        steps.close()
        if run.is_removed and move.future.failure is None:
            self._discard(move.future, partial(self._parts.retirement.discard, move.future))
        if move.is_marked and not move.is_replaced and move.current.failure is None:
            self._unmark(move)
        else:
            self._forget(move)

    def _unmark(self, move: ReplicaMove) -> None:
        if self._is_closed or move.current.failure is not None:
            self._forget(move)
        else:
            self._run_in_thread(move.unmark, partial(self._unmarked, move))

    def _unmarked(self, move: ReplicaMove, error: Exception | None) -> None:
        if error is not None:
            self._parts.log_dirs.work_failed(move.current.log_directory, error)
        if isinstance(error, ShortageError):
            # With the mark the log would not be served by a start without one of the log directories.
            self._release_slot(self._running[move.key])
            self._schedule.once(SHORTAGE_RETRY_MS, partial(self._unmark, move))
        else:
            self._forget(move)

    def _forget(self, move: ReplicaMove) -> None:
        run = self._running.pop(move.key)
        self._release_slot(run)
        self._fill_slots()


class _Run:
    """A move that was begun, and the results of its work in threads. `steps` is None when it has ended."""

    __slots__ = ("has_slot", "is_advancing", "is_in_thread", "is_removed", "move", "results", "steps")

    def __init__(self, move: ReplicaMove) -> None:
        self.move = move
        self.steps: MoveSteps | None = move.steps()
        self.results: list[Exception | None] = []
        self.has_slot = False
        self.is_advancing = False
        self.is_in_thread = False
        self.is_removed = False


def _pop_running(runs: deque[_Run]) -> _Run | None:
    """Remove and return the first run that has not ended."""
    while runs:
        run = runs.popleft()
        if run.steps is not None:
            return run
    return None
