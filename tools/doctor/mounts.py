"""File systems of log directories: kinds and mount options that lose records or slow a broker down."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from odradek.tools.doctor.findings import Finding, State

CHECK: Final = "file system"
_NETWORK: Final = frozenset({"9p", "afs", "ceph", "cifs", "nfs", "nfs4", "smb3", "smbfs", "virtiofs"})
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


class Mount(NamedTuple):
    """A mount point, its kind and its options."""

    path: str
    kind: str
    options: frozenset[str]


def parse_mounts(lines: Iterable[str]) -> Iterator[Mount]:
    """Iterate over the mounts in the lines of /proc/PID/mountinfo (proc(5))."""
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if separator and len(fields) >= 6 and len(rest) >= 3:
            yield Mount(_unescape(fields[4]), rest[0], frozenset([*fields[5].split(","), *rest[2].split(",")]))


def find_mount(mounts: Iterable[Mount], path: str) -> Mount | None:
    """Return the mount that contains a path. Of several on one mount point the last one is visible."""
    target = PurePosixPath(path)
    found: Mount | None = None
    for mount in mounts:
        if target.is_relative_to(mount.path) and (found is None or len(mount.path) >= len(found.path)):
            found = mount
    return found


def check_mount(subject: str, path: str, mount: Mount) -> Iterator[Finding]:
    """Iterate over the findings about the mount of a log directory."""
    label = f"{path}: {mount.kind} on {mount.path}"
    findings = [Finding(state, subject, CHECK, f"{label}{fact}", fix) for state, fact, fix in _judge(mount)]
    yield from findings or [Finding(State.OK, subject, CHECK, label)]


def _judge(mount: Mount) -> Iterator[tuple[State, str, str]]:
    options = mount.options
    if mount.kind in _IN_MEMORY:
        yield State.PROBLEM, " is in memory", "all records are lost at the next boot: move log.dirs to a disk"
    elif mount.kind in _NETWORK or mount.kind.startswith("fuse.sshfs"):
        fix = "an unreachable server stops the broker, and syncs may not be durable: move log.dirs to a local disk"
        yield State.WARNING, " is a network file system", fix
    elif mount.kind == "overlay":
        fix = "records are lost with the container: mount a volume at the log directory"
        yield State.WARNING, " is the layer of a container", fix
    if "ro" in options:
        yield State.PROBLEM, " is read-only", "look for disk errors with dmesg, repair the file system, mount it again"
    if options & {"nobarrier", "barrier=0"}:
        fix = "synced records can be lost when the power fails: remove the option"
        yield State.PROBLEM, " has no write barriers", fix
    if options & {"sync", "dirsync"}:
        yield State.WARNING, " is mounted with sync", "each write waits for the disk: remove the option"
    if "strictatime" in options:
        yield State.WARNING, " is mounted with strictatime", "each read causes a write: use noatime"


def _unescape(text: str) -> str:
    """Replace the octal escapes of spaces and other characters."""
    for character in " \t\n\\":
        text = text.replace(f"\\{ord(character):03o}", character)
    return text
