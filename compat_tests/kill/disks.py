"""Disks of a test's own that can be full, read-only, or gone from one moment to the next. Mounting takes root."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# ioctl(2) of ext4, XFS and F2FS: from now on everything fails with EIO.
FS_IOC_SHUTDOWN = 0x8004587D
SYNC_FIRST = 0
LOSE_WHAT_WAS_NOT_SYNCED = 2

BALLAST = "ballast"


class NotPermittedError(Exception):
    """This process may not mount file systems, or has not the tools for it; the message says what failed."""


class Disk:
    """A mounted file system; `path` is where."""

    def __init__(self, path: Path, mount: Callable[[], None]) -> None:
        self.path = path
        self._mount = mount

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def fill(self, leave_bytes: int = 0) -> None:
        """Takes up the room, except for so many bytes, with a file beside the data."""
        with open(self.path / BALLAST, "ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(self.free_bytes() - leave_bytes, 1))

    def fill_to_the_last_byte(self) -> None:
        """Take up all room by writing: `fill` leaves what a file system needs to say where the room is."""
        with open(self.path / BALLAST, "ab", buffering=0) as file:
            for size_bytes in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size_bytes))
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())

    def make_room(self) -> None:
        """Gives back what fill() took."""
        (self.path / BALLAST).unlink()

    def make_read_only(self) -> None:
        """No file may be open for writing."""
        _run("mount", "-o", "remount,ro", str(self.path))

    def make_writable(self) -> None:
        _run("mount", "-o", "remount,rw", str(self.path))

    def die(self, how: int) -> None:
        """From now on every access fails with EIO, also to files that are open."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(descriptor)

    def mount_again(self) -> None:
        """What a reboot does for a disk that died; nobody may have it open."""
        _run("umount", str(self.path))
        self._mount()


@contextmanager
def memory_disk(path: Path, size_bytes: int) -> Iterator[Disk]:
    """A tmpfs of that size."""
    yield from _mounted(path, lambda: _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)))


@contextmanager
def image_disk(path: Path, size_bytes: int) -> Iterator[Disk]:
    """An ext4 file system in a file beside `path`: one that can die."""
    image = path.with_suffix(".img")
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    try:
        yield from _mounted(path, lambda: _run("mount", "-o", "loop", str(image), str(path)))
    finally:
        image.unlink()


def _mounted(path: Path, mount: Callable[[], None]) -> Iterator[Disk]:
    path.mkdir(parents=True)
    mount()
    try:
        yield Disk(path, mount)
    finally:
        with contextlib.suppress(NotPermittedError):
            _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError as error:
        raise NotPermittedError(f"{command[0]} is not there: {error}") from error
    if result.returncode != 0:
        raise NotPermittedError(f"{' '.join(command)}: {result.stderr.strip()}")
