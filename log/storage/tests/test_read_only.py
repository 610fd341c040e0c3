"""The file system for tools that read a log directory beside a broker."""

import errno
import subprocess
import sys
from typing import Any

import pytest

from odradek.log.storage.filesystem import OsFileSystem, ends_in_zeros
from odradek.log.storage.read_only import ReadOnlyFileSystem, is_locked


@pytest.fixture
def path(tmp_path) -> str:
    (tmp_path / "file").write_bytes(b"content")
    return str(tmp_path / "file")


def test_files_can_be_read_and_not_written(path: str):
    fs = ReadOnlyFileSystem()
    directory = path.rpartition("/")[0]
    file = fs.open(path)
    assert file.pread(3, 10) == b"tent" == fs.read_bytes(path)[3:]
    assert (fs.size_bytes(path), fs.exists(path), fs.is_directory(directory)) == (7, True, True)
    assert fs.modified_ms(path) == OsFileSystem().modified_ms(path)
    assert fs.device(path) == fs.device(directory)
    assert fs.space_bytes(directory)[0] > 0
    assert fs.list_names(directory) == ["file"]
    with pytest.raises(OSError) as caught:
        file.write_pieces(0, [b"x"], 1)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize(
    "change",
    [
        lambda fs, path: fs.open(path, create=True),
        lambda fs, path: fs.make_directory(path + "-new"),
        lambda fs, path: fs.rename(path, path + "-new"),
        lambda fs, path: fs.remove(path),
        lambda fs, path: fs.remove_tree(path.rpartition("/")[0]),
        lambda fs, path: fs.set_modified_ms(path, 0),
        lambda fs, path: fs.sync_path(path),
        lambda fs, path: fs.sync_directory(path.rpartition("/")[0]),
        lambda fs, path: fs.lock(path),
    ],
)
def test_changes_are_refused(path: str, change):
    with pytest.raises(OSError) as caught:
        change(ReadOnlyFileSystem(), path)
    assert caught.value.errno == errno.EROFS


def test_a_lock_of_another_process_is_found(path: str):
    assert not is_locked(path)
    assert not is_locked(path + "-missing")
    holder = (
        "import sys; from odradek.log.storage.file_lock import OsLock; lock = OsLock(sys.argv[1]);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        assert is_locked(path)
        process.stdin.close()
        process.wait()
    assert not is_locked(path)


def test_a_file_that_is_truncated_while_its_zeros_are_checked(tmp_path):
    path = tmp_path / "index"
    path.write_bytes(bytes(100))
    file: Any = ReadOnlyFileSystem().open(str(path))
    reads = []

    class Shrinking:
        """A file that its owner truncates after its size was read."""

        data_from = file.data_from

        def size_bytes(self) -> int:
            return 1 << 20

        def pread(self, position: int, size_bytes: int) -> Any:
            reads.append(position)
            assert len(reads) < 10, "the check does not end"
            return file.pread(position, size_bytes)

    shrinking: Any = Shrinking()
    assert ends_in_zeros(shrinking, 10)
