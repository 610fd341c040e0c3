"""The faults of a run, and the operator who restarts the broker.

A fault is a method of `Faults`, chosen by weight. The "while writing" faults occur during one of the next writes of the
broker.
"""

import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from odradek.simulation.fault_schedule import FaultSchedule
from odradek.simulation.history import CrashKind, History
from odradek.simulation.machine.directories import Directories
from odradek.simulation.scenario import FaultPlan

if TYPE_CHECKING:
    from odradek.simulation.world import World

_MOST_FAILED_STARTS: Final = 5
_LATE_REPORTS_S: Final = 10
"""The failure of work on a slow thread takes a log directory offline when it is reported, seconds after it occurred."""
_OPERATIONS: Final = ("write", "write", "sync", "sync", "create", "rename", "remove", "truncate", "sync_directory")


class Faults:
    """Injects faults until `end`, which repairs everything."""

    def __init__(self, world: "World", history: History, plan: FaultPlan, random: Random) -> None:
        self._world = world
        self._history = history
        self._random = random
        self._directories = Directories(world, history, random)
        self._change: Callable[[], None] | None = None
        self._crash_is_power_loss = False
        self._failed_starts = 0
        self._schedule = FaultSchedule(world, plan, random, self)
        world.broker.on_up = self._directories.started
        world.broker.on_end = self._broker_ended
        world.broker.on_start_failure = self._start_failed

    def begin(self) -> None:
        """Schedule the first fault."""
        self._schedule.begin()

    def end(self) -> None:
        """Stop injecting faults and repair everything; restart a broker that lost a log directory."""
        self._schedule.end()
        world = self._world
        world.broker.disk.repair()
        world.metadata.repair()
        world.network.habits = world.network.habits._replace(slow_share=0.0)
        world.trace("all faults are over")
        for seconds in range(_LATE_REPORTS_S):
            world.clock.callLater(seconds, self._stop_without_directory)

    def _stop_without_directory(self) -> None:
        if self._world.broker.is_up and self._has_lost_directory():
            self._world.broker.stop()

    # The faults

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self._world.broker.kill()

    def kill_while_writing(self) -> None:
        """Kill the process between two disk operations, or during a write."""
        self._crash_is_power_loss = False
        self._world.broker.disk.crash_at(self._random.randint(1, 60))

    def lose_power(self) -> None:
        """Power off the machine."""
        if not self._world.broker.is_alive:
            # The page cache may still hold data that a killed broker had written.
            self._history.crash(CrashKind.POWER_LOSS)
        self._world.broker.lose_power(lose_names=self._random.random() < 0.5)

    def lose_power_while_writing(self) -> None:
        """Power off the machine during a write."""
        self._crash_is_power_loss = True
        self._world.broker.disk.crash_at(self._random.randint(1, 60))

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self._world.broker.stop()

    def break_connection(self) -> None:
        """Break one connection."""
        links = list(self._world.network.links)
        if links:
            self._random.choice(links).break_off(self._random)

    def break_all_connections(self) -> None:
        """Break all connections."""
        for link in list(self._world.network.links):
            link.break_off(self._random)

    def fail_once(self) -> None:
        """Fail one disk operation."""
        error = self._random.choice((errno.EIO, errno.ENOSPC))
        self._world.broker.disk.fail(self._random.choice(_OPERATIONS), after=self._random.randint(1, 20), error=error)
        self._repair_later()

    def fail_sync(self) -> None:
        """Fail the sync of a file, whose unsynced data is lost once the page cache is dropped."""
        self._world.broker.disk.fail("sync", after=self._random.randint(1, 5), error=errno.EIO)
        self._repair_later()

    def fill_disk(self) -> None:
        """Fill the disk for a limited time."""
        self._world.broker.disk.is_full = True
        self._repair_later()

    def run_out_of_files(self) -> None:
        """Refuse new files for a limited time; existing files can still grow."""
        self._world.broker.disk.takes_no_files = True
        self._repair_later()

    def break_directory(self) -> None:
        """Fail a log directory until the operator repairs it."""
        directories = self._world.broker.directories
        self._world.broker.disk.broken[self._random.choice(directories)] = None
        self._repair_later()

    def fail_store(self) -> None:
        """Fail some of the next transactions of the metadata store before their commit."""
        self._fail_store(after_commit=False)

    def fail_store_after_commit(self) -> None:
        """Fail some of the next transactions of the metadata store after their commit."""
        self._fail_store(after_commit=True)

    def _fail_store(self, *, after_commit: bool) -> None:
        random = self._random
        self._world.metadata.fail(random.choice((0, 1, 2)), random.choice((1, 1, 3, 20)), after_commit=after_commit)
        self._repair_later()

    def reorder_directories(self) -> None:
        """Change the order of log.dirs."""
        self._restart_after(self._directories.reorder)

    def put_directory_first(self) -> None:
        """Add a new directory as the first of log.dirs."""
        self._restart_after(self._directories.put_first)

    def add_foreign_directory(self) -> None:
        """Add a directory that is no partition to a log directory."""
        self._restart_after(self._directories.add_foreign)

    def lose_store(self) -> None:
        """Delete the metadata store."""
        self._restart_after(self._directories.lose_store)

    def restore_store(self) -> None:
        """Copy the metadata store; after a time replace it by the copy, while the broker is down."""
        self._directories.back_up_store()
        self._world.clock.callLater(self._random.uniform(0.1, 1.5), self._restore_store)

    def _restore_store(self) -> None:
        if self._schedule.is_over:
            return
        if self._world.broker.is_up:
            self._restart_after(self._directories.restore_store)
        else:
            self._world.clock.callLater(0.1, self._restore_store)

    def _restart_after(self, change: Callable[[], None]) -> None:
        """Apply a change while the broker is down, after a stop or a kill; no other fault occurs meanwhile."""
        broker = self._world.broker
        if not broker.is_up or broker.is_stopping:
            return
        self._change = change
        self._repair()
        if self._random.random() < 0.5:
            broker.stop()
        else:
            broker.kill()

    # The operator

    def _repair_later(self) -> None:
        self._world.clock.callLater(self._random.uniform(0.1, 1.5), self._repair)

    def _repair(self) -> None:
        """Repair the disk, and restart the broker if it has taken a log directory offline."""
        world = self._world
        world.broker.disk.is_full = world.broker.disk.takes_no_files = False
        world.broker.disk.broken.clear()
        world.broker.disk.heal()
        world.metadata.repair()
        if world.broker.is_up and self._has_lost_directory():
            if self._random.random() < 0.7:
                world.broker.stop()
            else:
                world.broker.kill()

    def _has_lost_directory(self) -> bool:
        broker = self._world.broker
        logs = None if broker.broker is None else broker.broker.services.logs
        return logs is not None and len(logs.online_directories) < len(broker.directories)

    def _broker_ended(self, how: str) -> None:
        world, random = self._world, self._random
        self._history.has_unfinished_end |= world.broker.disk.has_refused
        if how == "died while writing":
            if self._crash_is_power_loss:
                world.broker.disk.come_down(is_power_loss=True, lose_names=random.random() < 0.5)
            else:
                world.broker.disk.come_down(is_power_loss=False)
        if how == "power lost" or (how == "died while writing" and self._crash_is_power_loss):
            self._history.crash(CrashKind.POWER_LOSS)
        elif how in ("killed", "died while writing"):
            self._history.crash(CrashKind.PROCESS_KILL)
        if world.broker.disk.forget_unsynced():
            self._history.crash(CrashKind.DISK_FAILURE)
        world.clock.callLater(0.05 if self._schedule.is_over else random.choice((0.01, 0.1, 1.0)), self._start)

    def _start(self) -> None:
        if not self._world.broker.is_alive:
            change, self._change = self._change, None
            if change is not None:
                self._world.broker.disk.repair()
                change()
            self._world.broker.start()

    def check(self) -> None:
        """Check conditions that faults must not violate, at the end of the run."""
        self._directories.check()

    def _start_failed(self, why: str) -> None:
        """Fail the run, unless a disk operation failed: then a start may fail, and the operator repairs the disk."""
        disk = self._world.broker.disk
        if not disk.has_refused:
            self._world.fail(f"the broker does not start although no disk operation failed: {why}")
        self._failed_starts += 1
        if self._failed_starts > _MOST_FAILED_STARTS:
            disk.repair()
            self._world.metadata.repair()
