"""The file that records how far a dead-letter topic is replayed."""

import pytest

from odradek.spark_it.dead_letters.replay_position import FILE, ReplayPositionError, read_position, write_position

FIRST, SECOND = ("dlq", 0), ("dlq", 1)


def test_an_offset_belongs_to_one_id_of_a_topic(tmp_path):
    assert read_position(tmp_path, "dlq", "a") == {}
    write_position(tmp_path, FIRST, "a", 5)
    write_position(tmp_path, ("other", 0), "b", 7)
    write_position(tmp_path, SECOND, "a", 2)
    assert read_position(tmp_path, "dlq", "a") == {FIRST: 5, SECOND: 2}
    # The topic was deleted and created again, and has as many records.
    assert read_position(tmp_path, "dlq", "c") == {}
    write_position(tmp_path, SECOND, "c", 1)
    assert read_position(tmp_path, "dlq", "c") == {SECOND: 1}
    assert read_position(tmp_path, "other", "b") == {("other", 0): 7}


def test_a_cluster_without_ids(tmp_path):
    write_position(tmp_path, FIRST, "", 5)
    assert read_position(tmp_path, "dlq", "a") == {FIRST: 5}
    write_position(tmp_path, FIRST, "a", 6)
    write_position(tmp_path, FIRST, "", 7)
    assert read_position(tmp_path, "dlq", "") == read_position(tmp_path, "dlq", "a") == {FIRST: 7}
    assert read_position(tmp_path, "dlq", "c") == {}


def test_a_file_of_version_1(tmp_path):
    (tmp_path / FILE).write_text('{"dlq": {"0": 5}, "version": {"0": 1}}')
    assert read_position(tmp_path, "dlq", "a") == {FIRST: 5}
    write_position(tmp_path, SECOND, "a", 2)
    assert read_position(tmp_path, "dlq", "a") == {FIRST: 5, SECOND: 2}
    assert read_position(tmp_path, "version", "v") == {("version", 0): 1}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[]", "is damaged"),
        ("{", "is damaged"),
        ('{"dlq": 5}', "is damaged"),
        ('{"version": 2}', "is damaged"),
        ('{"version": 2, "topics": {"dlq": {"id": "a", "offsets": {"x": 1}}}}', "is damaged"),
        ('{"version": 3, "topics": {}}', "has version 3; this release supports versions 1 and 2"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, text, what):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ReplayPositionError, match=rf"replayed\.json {what}"):
        read_position(tmp_path, "dlq", "a")
