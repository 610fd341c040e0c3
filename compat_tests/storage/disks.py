"""Disks for a single test that can be full, read-only, or fail at any moment. Mounting requires root."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# ioctl(2) of ext4, XFS and F2FS: all later operations fail with EIO.
FS_IOC_SHUTDOWN = 0x8004587D
SYNC_FIRST = 0
LOSE_WHAT_WAS_NOT_SYNCED = 2

BALLAST = "ballast"


class NotPermittedError(Exception):
    """This process may not mount file systems, or lacks the tools for it; the message contains the failed command."""


class Disk:
    """A mounted file system; `path` is its mount point."""

    def __init__(self, path: Path, mount: Callable[[], None]) -> None:
        self.path = path
        self._mount = mount

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the disk, except for `leave_bytes`, with a file beside the data."""
        with open(self.path / BALLAST, "ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(self.free_bytes() - leave_bytes, 1))

    def fill_to_the_last_byte(self) -> None:
        """Fill the disk by writing: `fill` leaves the space that a file system needs for its own metadata."""
        with open(self.path / BALLAST, "ab", buffering=0) as file:
            for size_bytes in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size_bytes))
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())

    def make_room(self) -> None:
        """Free the space that `fill` has taken."""
        (self.path / BALLAST).unlink()

    def make_read_only(self) -> None:
        """Make the file system read-only; no file may be open for writing."""
        _run("mount", "-o", "remount,ro", str(self.path))

    def make_writable(self) -> None:
        _run("mount", "-o", "remount,rw", str(self.path))

    def die(self, how: int) -> None:
        """Make every access fail with EIO, also to open files."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(descriptor)

    def mount_again(self) -> None:
        """Mount a failed disk again, as after a reboot; no file on it may be open."""
        _run("umount", str(self.path))
        self._mount()


@contextmanager
def memory_disk(path: Path, size_bytes: int) -> Iterator[Disk]:
    """Mount a tmpfs of that size."""
    yield from _mounted(path, lambda: _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)))


@contextmanager
def image_disk(path: Path, size_bytes: int) -> Iterator[Disk]:
    """Mount an ext4 file system in a file beside `path`, which can fail."""
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
