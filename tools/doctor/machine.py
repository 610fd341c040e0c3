"""Checks of the machine on which a broker runs, from /proc: open files, disks, file systems, memory, clock."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from odradek.tools.doctor.clock_sync import ClockSync, read_clock_sync
from odradek.tools.doctor.findings import Finding, State, format_bytes, judge_free
from odradek.tools.doctor.mounts import CHECK as FILE_SYSTEM
from odradek.tools.doctor.mounts import check_mount, find_mount, parse_mounts
from odradek.tools.doctor.processes import PROC, BrokerProcess

LOW_FILE_LIMIT: Final = 10_000
_FIX_FILES: Final = (
    "raise LimitNOFILE= of systemd, --ulimit nofile= of Docker or ulimit -n, and restart; see docs/limits.md"
)
_FIX_MEMORY: Final = "move other programs elsewhere, or add memory: the page cache serves consumers"


class Machine(NamedTuple):
    """The sources of the facts.

    proc: the directory /proc
    file_system: statvfs
    clock: the kernel's state of the clock
    """

    proc: Path = PROC
    file_system: Callable[[str], os.statvfs_result] = os.statvfs
    clock: Callable[[], ClockSync | None] = read_clock_sync


def check_machine(machine: Machine, subject: str, process: BrokerProcess, log_dirs: Sequence[str]) -> Iterator[Finding]:
    """Iterate over the findings about the machine of a process."""
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("open files", lambda: _check_open_files(subject, process)),
        ("memory maps", lambda: _check_maps(machine, subject, process)),
        ("disk", lambda: _check_disks(machine, subject, process, log_dirs)),
        (FILE_SYSTEM, lambda: _check_mounts(subject, process, log_dirs)),
        ("memory", lambda: _check_memory(machine, subject)),
        ("swap", lambda: _check_swap(subject, process)),
        ("clock", lambda: _check_clock(machine, subject)),
    )
    for name, make_findings in checks:
        try:
            yield from make_findings()
        except (OSError, KeyError, ValueError, IndexError) as error:
            yield Finding(State.UNCHECKED, subject, name, f"cannot be read: {error}")


def _check_open_files(subject: str, process: BrokerProcess) -> Iterator[Finding]:
    check = "open files"
    [line] = [line for line in _read(process.directory / "limits").splitlines() if line.startswith("Max open files")]
    soft = line.split()[3]
    used = len(process.files)
    fact = f"{used} of {soft}, {process.name} with pid {process.pid}"
    if soft == "unlimited":
        yield Finding(State.OK, subject, check, fact)
        return
    limit = int(soft)
    state = judge_free(limit - used, limit, 0.1, 0.3)
    if state is State.OK and limit < LOW_FILE_LIMIT:
        state = State.WARNING
    yield Finding(state, subject, check, fact, "" if state is State.OK else _FIX_FILES)


def _check_maps(machine: Machine, subject: str, process: BrokerProcess) -> Iterator[Finding]:
    """Check the number of memory maps; the JVM maps the indexes of all segments, and ends when it may map no more."""
    limit = int(_read(machine.proc / "sys/vm/max_map_count"))
    used = len(_read(process.directory / "maps").splitlines())
    state = judge_free(limit - used, limit, 0.1, 0.3)
    fix = "" if state is State.OK else "raise vm.max_map_count with sysctl"
    yield Finding(state, subject, "memory maps", f"{used} of {limit}", fix)


def _check_disks(machine: Machine, subject: str, process: BrokerProcess, log_dirs: Sequence[str]) -> Iterator[Finding]:
    for path in log_dirs:
        # The root directory of the process, which is that of its container.
        found = machine.file_system(f"{process.directory}/root{path}")
        free_bytes, total_bytes = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        state = judge_free(free_bytes, total_bytes, 0.05, 0.15)
        fix = "" if state is State.OK else "add disk space, or shorten the retention of large topics"
        fact = f"{path}: {format_bytes(free_bytes)} of {format_bytes(total_bytes)} free"
        yield Finding(state, subject, "disk", fact, fix)
        if not found.f_files:
            yield Finding(State.OK, subject, "inodes", f"{path}: the file system has no fixed number")
            continue
        state = judge_free(found.f_favail, found.f_files, 0.05, 0.15)
        fix = "" if state is State.OK else "delete small files, or make the file system with more inodes"
        yield Finding(state, subject, "inodes", f"{path}: {found.f_favail:,} of {found.f_files:,} free", fix)


def _check_mounts(subject: str, process: BrokerProcess, log_dirs: Sequence[str]) -> Iterator[Finding]:
    mounts = list(parse_mounts(_read(process.directory / "mountinfo").splitlines()))
    for path in log_dirs:
        mount = find_mount(mounts, path)
        if mount is None:
            yield Finding(State.UNCHECKED, subject, FILE_SYSTEM, f"{path} is on no mount of the process")
        else:
            yield from check_mount(subject, path, mount)


def _check_memory(machine: Machine, subject: str) -> Iterator[Finding]:
    sizes = _read_sizes(machine.proc / "meminfo")
    available, total = sizes["MemAvailable"], sizes["MemTotal"]
    state = judge_free(available, total, 0.05, 0.1)
    fact = f"{format_bytes(available)} of {format_bytes(total)} available"
    yield Finding(state, subject, "memory", fact, "" if state is State.OK else _FIX_MEMORY)


def _check_swap(subject: str, process: BrokerProcess) -> Iterator[Finding]:
    swapped = _read_sizes(process.directory / "status")["VmSwap"]
    if swapped:
        fact = f"{format_bytes(swapped)} of the broker's memory is swapped out"
        fix = "requests wait for the disk: add memory, or set vm.swappiness=1"
        yield Finding(State.WARNING, subject, "swap", fact, fix)
    else:
        yield Finding(State.OK, subject, "swap", "none of the broker's memory is swapped out")


def _check_clock(machine: Machine, subject: str) -> Iterator[Finding]:
    check = "clock"
    state = machine.clock()
    if state is None:
        yield Finding(State.UNCHECKED, subject, check, "the kernel does not report whether it is synchronised")
    elif state.is_synchronised:
        yield Finding(State.OK, subject, check, f"synchronised, estimated error {state.estimated_error_us / 1000:g} ms")
    else:
        fix = "run chrony or systemd-timesyncd, unless a hypervisor or the host of the container sets the clock"
        yield Finding(State.WARNING, subject, check, "the kernel's clock is not synchronised", fix)


def _read_sizes(file: Path) -> dict[str, int]:
    """Return the sizes in bytes of a file with lines such as `VmSwap: 12 kB`."""
    sizes = {}
    for line in _read(file).splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields[1:] == ["kB"]:
            sizes[name] = int(fields[0]) * 1024
    return sizes


def _read(file: Path) -> str:
    return file.read_text("utf-8", "replace")
