"""Folders of the files sink on a file system that is a dictionary, without Java."""

import json

import pytest

from odradek.spark_it.sinks import files as files_sink
from odradek.spark_it.sinks.files import DONE, ROWS, FolderSink
from spark_it.tests.unit.support import UNUSED, pipeline

SINK = """
name = "orders"
[source.orders]
connector = "generator"
[sink]
connector = "files"
path = "out"
format = "parquet"
"""


class Files(dict[str, str]):
    """A `_FileSystem` in memory: texts of files by their names."""

    def __init__(self, *_):
        super().__init__()

    def exists(self, name):
        return any(file == name or file.startswith(f"{name}/") for file in self)

    def read(self, name):
        return self.get(name)

    def create(self, name, text):
        self[name] = text

    def delete(self, name):
        for file in [file for file in self if file == name or file.startswith(f"{name}/")]:
            del self[file]

    def list_sizes(self, name):
        files = {file.removeprefix(f"{name}/"): len(text) for file, text in self.items() if file.startswith(f"{name}/")}
        return {file: size for file, size in files.items() if file[0] not in "._"}


@pytest.fixture
def folders(monkeypatch):
    monkeypatch.setattr(files_sink, "_FileSystem", Files)
    return files_sink.make(pipeline(SINK), None, UNUSED, None)


def write(folders, name, whole=True):
    folders._files.create(f"{name}/{ROWS}", json.dumps({"rows": 7, "files": {"part-0": 3, "part-1": 3}}))
    for part in range(1 + whole):
        folders._files.create(f"{name}/part-{part}", "abc")


def test_a_complete_folder_is_marked_as_done_after_a_crash(folders: FolderSink):
    """Readers delete files that they have read, so file names no longer show that the folder was complete."""
    write(folders, "batch=1-0")
    assert folders._read_row_count("batch=1-0") == 7
    folders._files.delete("batch=1-0/part-0")
    assert folders._read_row_count("batch=1-0") == 7


def test_a_complete_folder_of_another_driver_is_marked_as_done(folders: FolderSink):
    write(folders, "batch=1-0")
    write(folders, ".batch=1-0.ab")
    folders._rename_attempt(".batch=1-0.ab", "batch=1-0")
    assert folders._files.exists(f"batch=1-0/{DONE}") and not folders._files.exists(".batch=1-0.ab")


def test_an_interrupted_copy_is_not_marked_as_done(folders: FolderSink):
    write(folders, "batch=1-0", whole=False)
    assert folders._read_row_count("batch=1-0") is None
    assert not folders._files.exists(f"batch=1-0/{DONE}")
