"""Pages of files in the page cache, and systems that do not report them."""

import os
import sys

import pytest

from odradek.log.storage import page_cache
from odradek.log.storage.filesystem import OsFileSystem

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def system():
    """The module before its first call."""
    page_cache._count_pages.cache_clear()
    yield page_cache
    page_cache._count_pages.cache_clear()


@pytest.fixture
def file(tmp_path):
    """A file of two pages and one byte, all in memory."""
    file = OsFileSystem().open(f"{tmp_path}/a", create=True)
    file.write_pieces(0, [bytes(2 * PAGE_BYTES + 1)], 2 * PAGE_BYTES + 1)
    return file


def test_what_is_behind_the_end_of_the_file_is_not_missing(file):
    for position, size_bytes in (
        (0, 2 * PAGE_BYTES + 1),
        (PAGE_BYTES - 1, 100 * PAGE_BYTES),
        (2 * PAGE_BYTES, 3 * PAGE_BYTES),
        (2 * PAGE_BYTES + 5, 3 * PAGE_BYTES),
        (50 * PAGE_BYTES, 3 * PAGE_BYTES),
    ):
        assert not page_cache.lacks_pages(file.fd, position, size_bytes)
        assert file.is_cached(position, size_bytes)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_page_is_found_also_in_a_part_behind_the_end(system, file, monkeypatch, missing):
    monkeypatch.setattr(system, "_count_pages", lambda: lambda fd, position, size_bytes: 3 - missing)
    for size_bytes in (2 * PAGE_BYTES + 1, 3 * PAGE_BYTES, 50 * PAGE_BYTES):
        assert system.lacks_pages(file.fd, 0, size_bytes) == (missing > 0)


def test_a_failed_count_finds_nothing_missing(file):
    assert not page_cache.lacks_pages(-1, 0, 5)
    file.close()
    assert not page_cache.lacks_pages(file.fd, 0, 5)


def test_no_other_file_is_opened(system, file, monkeypatch):
    """There may be no descriptor for it, or no file, if the program runs from an archive."""

    def fail(*arguments):
        raise OSError("too many open files")

    monkeypatch.setattr("builtins.open", fail)
    monkeypatch.setattr(os, "open", fail)
    assert not system.lacks_pages(file.fd, 0, 1)


def test_a_python_without_ctypes_does_not_count(system, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert not system.lacks_pages(file.fd, 0, 1)
