"""Folders of a pipeline on a cluster, with tasks that share them and tasks that do not."""

import shutil

import pytest

from odradek.spark_it.definition.reader import parse
from odradek.spark_it.execution import shared_folders
from odradek.spark_it.execution.preflight import RefusedError

FILES = """
name = "lines"
[source.lines]
connector = "files"
path = "in"
format = "text"
[sink]
connector = "files"
path = "out"
format = "text"
"""


def test_the_drivers_folders_are_compared_with_those_of_tasks(spark, tmp_path, monkeypatch):
    one = parse(FILES, {}, file="p.toml", folder=tmp_path)
    source, out, home = tmp_path / "in", tmp_path / "out", tmp_path / "pipelines" / "lines"
    shared_folders.check(one, None, spark)
    source.mkdir()
    (source / "some.txt").write_text("x\n", "utf-8")
    shared_folders.check(one, "state", spark)
    assert [*out.iterdir()] == [*home.iterdir()] == [], "probes are left"

    listed, found = shared_folders._list_files, []

    def gone_below(folder):
        """Delete what the driver has listed in `folder`, as if it were not on the worker's disk."""

        def gone_at_the_worker(path, session):
            found.append(path)
            frame = listed(path, session)
            if path.is_relative_to(folder):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            return frame

        return gone_at_the_worker

    for folder, key in ((home, "home"), (out, "sink.path"), (source, "source.lines.path")):
        monkeypatch.setattr(shared_folders, "_list_files", gone_below(folder))
        with pytest.raises(RefusedError, match=f"^{key}: a worker of local.* does not share "):
            shared_folders.check(one, "state", spark)
    assert len(found) == 1 + 2 + 3
