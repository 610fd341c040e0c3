from pathlib import Path

import pytest

from odradek.spark_it.definition.guarantees import find_stateful_reason
from odradek.spark_it.execution.shared_folders import list_read_folders, list_written_folders, to_local_path
from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, pipeline, transform

HERE = Path("/pipelines")
COUNTS = transform("SELECT count(*) AS n FROM orders")
FILES = 'name = "f"\n[source.lines]\nconnector = "files"\npath = "in"\nformat = "text"\n'
TABLE = (
    'name = "t"\n[source.rows]\nconnector = "jdbc"\nconnection.url = "jdbc:x"\ntable.whitelist = "t"\n'
    'incrementing.column.name = "id"\n'
)
ICEBERG = '[sink]\nconnector = "iceberg"\niceberg.tables = "a.b"\niceberg.catalog.warehouse = "lake"\n'


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        (SOURCE + TOPIC, {}),
        (SOURCE + COUNTS + TOPIC, {"home": "file:/pipelines/pipelines/orders"}),
        (TABLE + TOPIC, {"home": "file:/pipelines/pipelines/t"}),
        (SOURCE + '[sink]\nconnector = "delta"\npath = "lake"\n', {"sink.path": "/pipelines/lake"}),
        (
            SOURCE + '[sink]\nconnector = "files"\npath = "s3a://b/x"\nformat = "json"\n',
            {"sink.path": "s3a://b/x"},
        ),
        (SOURCE + ICEBERG, {"sink.iceberg.catalog.warehouse": "/pipelines/lake"}),
        (SOURCE + ICEBERG + 'iceberg.catalog.type = "rest"\n', {}),
    ],
)
def test_folders_that_tasks_write(text, folders):
    one = pipeline(text)
    assert list_written_folders(one, find_stateful_reason(one)) == folders
    assert list_read_folders(one) == {}


def test_folders_that_tasks_read():
    assert list_read_folders(pipeline(FILES + CONSOLE)) == {"source.lines.path": "/pipelines/in"}


@pytest.mark.parametrize(
    ("path", "scheme", "expected"),
    [
        ("/data/out", "file", Path("/data/out")),
        ("/data/out", "hdfs", None),
        ("file:/data/out", "hdfs", Path("/data/out")),
        ("file:///data/out", "file", Path("/data/out")),
        ("s3a://bucket/out", "file", None),
    ],
)
def test_local_paths(path, scheme, expected):
    assert to_local_path(path, scheme) == expected
