"""Small files of a log directory: their exact bytes, and malformed contents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.log.storage import checkpoints
from odradek.log.storage.checkpoints import (
    MalformedFileError,
    MetaProperties,
    format_java_properties,
    parse_java_properties,
)
from odradek.log.storage.memory_filesystem import MemoryFileSystem

PATH = "/d/file"
TOPIC_ID = bytes(range(16))
TOPIC_ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"


@pytest.fixture
def fs() -> MemoryFileSystem:
    result = MemoryFileSystem()
    result.make_directory("/d")
    return result


def put(fs: MemoryFileSystem, data: bytes, path: str = PATH) -> None:
    file = fs.open(path, create=True)
    file.truncate(0)
    file.write_pieces(0, [data], len(data))


def test_offsets(fs: MemoryFileSystem):
    offsets = {("a", 0): 5, ("b-c.d_e", 12): 1 << 62}
    checkpoints.write_offsets(fs, PATH, offsets)
    assert fs.read_bytes(PATH) == b"0\n2\na 0 5\nb-c.d_e 12 4611686018427387904\n"
    assert checkpoints.read_offsets(fs, PATH) == offsets
    assert fs.list_names("/d") == ["file"], "the temporary file is gone"
    checkpoints.write_offsets(fs, PATH, {})
    assert fs.read_bytes(PATH) == b"0\n0\n"
    assert checkpoints.read_offsets(fs, PATH) == {}


def test_leader_epochs(fs: MemoryFileSystem):
    checkpoints.write_leader_epochs(fs, PATH, [(1, 0), (4, 100)], sync=True)
    assert fs.read_bytes(PATH) == b"0\n2\n1 0\n4 100\n"
    assert checkpoints.read_leader_epochs(fs, PATH) == [(1, 0), (4, 100)]
    put(fs, b"0\n2\n4 100\n1 0\n")
    assert checkpoints.read_leader_epochs(fs, PATH) == [(1, 0), (4, 100)]


@pytest.mark.parametrize("kept_bytes", range(1, 17))
def test_truncated_leader_epochs_are_malformed(fs: MemoryFileSystem, kept_bytes):
    whole = b"0\n3\n1 0\n2 5\n3 25\n"
    put(fs, whole[:kept_bytes])
    with pytest.raises(MalformedFileError, match=r"^/d/file: "):
        checkpoints.read_leader_epochs(fs, PATH)


def test_a_checkpoint_is_synced_before_the_rename(fs: MemoryFileSystem):
    checkpoints.write_offsets(fs, PATH, {("a", 0): 1})
    checkpoints.write_offsets(fs, PATH, {("a", 0): 2})
    fs.crash(lose_names=True)
    assert checkpoints.read_offsets(fs, PATH) == {("a", 0): 2}
    fs.fail("sync")
    with pytest.raises(OSError, match="file"):
        checkpoints.write_offsets(fs, PATH, {("a", 0): 3})
    assert checkpoints.read_offsets(fs, PATH) == {("a", 0): 2}


@pytest.mark.parametrize("content", [None, b""])
def test_an_absent_or_empty_checkpoint_has_no_entries(fs: MemoryFileSystem, content):
    if content is not None:
        put(fs, content)
    assert checkpoints.read_offsets(fs, PATH) == {}
    assert checkpoints.read_leader_epochs(fs, PATH) == []


def test_line_ends_are_accepted_as_in_java(fs: MemoryFileSystem):
    put(fs, b"0\r\n1\r\na 0 5")
    assert checkpoints.read_offsets(fs, PATH) == {("a", 0): 5}


@pytest.mark.parametrize(
    "content",
    [
        b"1\n1\na 0 5\n",
        b"\n1\na 0 5\n",
        b"0\n",
        b"0",
        b"0\nx\n",
        b"0\n-1\n",
        b"0\n2\na 0 5\n",
        b"0\n0\na 0 5\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 5 6\n",
        b"0\n1\na x 5\n",
        b"0\n1\na 0 x\n",
        b"0\n1\n\n",
        b"\xff\xfe",
        bytes(20),
    ],
)
def test_malformed_offsets(fs: MemoryFileSystem, content):
    put(fs, content)
    with pytest.raises(MalformedFileError, match=r"^/d/file: ") as raised:
        checkpoints.read_offsets(fs, PATH)
    assert raised.value.path == PATH
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"0\n1\n1 2 3\n", b"0\n1\n1\n", b"0\n1\na 1\n", b"9\n0\n"])
def test_malformed_leader_epochs(fs: MemoryFileSystem, content):
    put(fs, content)
    with pytest.raises(MalformedFileError):
        checkpoints.read_leader_epochs(fs, PATH)


def test_partition_metadata(fs: MemoryFileSystem):
    assert checkpoints.read_partition_metadata(fs, "/d") is None
    checkpoints.write_partition_metadata(fs, "/d", TOPIC_ID)
    assert fs.read_bytes("/d/partition.metadata") == f"version: 0\ntopic_id: {TOPIC_ID_TEXT}".encode()
    assert checkpoints.read_partition_metadata(fs, "/d") == TOPIC_ID


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"version: 0",
        b"version: 1\ntopic_id: " + TOPIC_ID_TEXT.encode(),
        b"topic_id: " + TOPIC_ID_TEXT.encode(),
        b"version: 0\ntopic_id: AAEC",
        b"version: 0\ntopic_id: \xc3\xa9",
        b"version: 0\ntopic_id:",
    ],
)
def test_malformed_partition_metadata(fs: MemoryFileSystem, content):
    put(fs, content, "/d/partition.metadata")
    with pytest.raises(MalformedFileError, match=r"^/d/partition\.metadata: "):
        checkpoints.read_partition_metadata(fs, "/d")


def test_uuid():
    assert checkpoints.encode_uuid(TOPIC_ID) == TOPIC_ID_TEXT
    assert checkpoints.encode_uuid(b"\xff\xef" * 8)[:4] == "_-__"
    assert checkpoints.decode_uuid("_-__7__v_-__7__v_-__7w") == b"\xff\xef" * 8
    for text in ("", "AAECAwQFBgcICQoLDA0O", TOPIC_ID_TEXT + "AA"):
        with pytest.raises(ValueError):
            checkpoints.decode_uuid(text)


def test_meta_properties(fs: MemoryFileSystem):
    assert checkpoints.read_meta_properties(fs, "/d") is None
    meta = MetaProperties(1, "abc=1", 3, TOPIC_ID, {"some.other": "value"})
    checkpoints.write_meta_properties(fs, "/d", meta)
    assert parse_java_properties(fs.read_bytes("/d/meta.properties").decode()) == {
        "version": "1",
        "cluster.id": "abc=1",
        "node.id": "3",
        "directory.id": TOPIC_ID_TEXT,
        "some.other": "value",
    }
    assert checkpoints.read_meta_properties(fs, "/d") == meta


def test_meta_properties_written_by_apache_kafka(fs: MemoryFileSystem):
    put(fs, b"#\n#Tue May 05 2026\nbroker.id=7\nversion=0\ncluster.id=xyz\n", "/d/meta.properties")
    assert checkpoints.read_meta_properties(fs, "/d") == MetaProperties(0, "xyz", 7, None, {})
    put(fs, b"version=1\n", "/d/meta.properties")
    assert checkpoints.read_meta_properties(fs, "/d") == MetaProperties(1, None, None, None, {})


@pytest.mark.parametrize(
    "content",
    [b"", b"version=2\n", b"version=x\n", b"version=1\nnode.id=x", b"version=1\ndirectory.id=abc", b"\xff", b"a=\\u12"],
)
def test_malformed_meta_properties(fs: MemoryFileSystem, content):
    put(fs, content, "/d/meta.properties")
    with pytest.raises(MalformedFileError, match=r"^/d/meta\.properties: "):
        checkpoints.read_meta_properties(fs, "/d")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1\nb:2\nc 3\n d = 4 \ne", {"a": "1", "b": "2", "c": "3", "d": "4 ", "e": ""}),
        ("# no\n! no\n\n  # no\na=#yes", {"a": "#yes"}),
        ("a=1\\\n   2\nb=3\\\\\nc=4\\", {"a": "12", "b": "3\\", "c": "4"}),
        ("a\\ b\\=c=\\u0041\\t\\q", {"a b=c": "A\tq"}),
        ("a==b\na2 := b", {"a": "=b", "a2": "= b"}),
    ],
)
def test_java_properties(text, values):
    assert parse_java_properties(text) == values


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_java_properties_round_trip(values):
    assert parse_java_properties(format_java_properties(values)) == values


def test_clean_shutdown(fs: MemoryFileSystem):
    path = f"/d/{checkpoints.CLEAN_SHUTDOWN_FILE}"
    assert checkpoints.read_clean_shutdown(fs, "/d") is None
    checkpoints.remove_clean_shutdown(fs, "/d")
    checkpoints.write_clean_shutdown(fs, "/d", 12)
    assert fs.read_bytes(path) == b'{"version":0,"brokerEpoch":12}'
    assert checkpoints.read_clean_shutdown(fs, "/d") == 12
    for content in (b"", b"{}", b"[]", b"\xff", b'{"brokerEpoch":"x"}'):
        put(fs, content, path)
        assert checkpoints.read_clean_shutdown(fs, "/d") == -1, "the file exists, whatever its content"
    checkpoints.remove_clean_shutdown(fs, "/d")
    fs.crash(lose_names=True)
    assert checkpoints.read_clean_shutdown(fs, "/d") is None, "the removal is durable"
