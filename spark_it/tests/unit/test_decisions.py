"""Answers of a registry that hold for a batch. Each `worker` starts with empty caches, as a new process does."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from odradek.spark_it.formats.avro import framed_decoder
from odradek.spark_it.formats.avro_codec import RecordError
from odradek.spark_it.formats.columns import UnavailableError
from odradek.spark_it.formats.decisions import Answer, Answers, Place, begin
from odradek.spark_it.formats.registry import Address, framed, registry_at
from spark_it.tests.fake_registry import serving
from spark_it.tests.unit.test_formats_avro import record

LONG = json.dumps(record("long"))
FIVE = framed(1, b"\x0a")


@pytest.fixture
def served():
    with serving() as registry:
        yield registry


def place(folder, batch):
    return Place(str(folder / str(batch)), "orders.value")


def worker(served, folder, batch):
    registry_at.cache_clear()
    return framed_decoder.__wrapped__(Address(served.url), LONG, place(folder, batch))


def test_an_id_stays_unknown_for_the_batch_and_known_for_the_next_ones(served, tmp_path):
    begin(tmp_path, 0)
    with pytest.raises(RecordError, match="the registry has no schema 1"):
        worker(served, tmp_path, 0)(FIVE)
    served.add(LONG)
    with pytest.raises(RecordError, match="the registry has no schema 1"):
        worker(served, tmp_path, 0)(FIVE)
    begin(tmp_path, 1)
    assert worker(served, tmp_path, 1)(FIVE) == {"a": 5}
    served.schemas.clear()
    assert worker(served, tmp_path, 1)(FIVE) == {"a": 5}


def test_a_schema_that_is_none_of_avro_stays_so(served, tmp_path):
    begin(tmp_path, 0)
    served.add(LONG, schemaType="JSON")
    for _ in range(2):
        with pytest.raises(RecordError, match="schema 1 is JSON and not AVRO"):
            worker(served, tmp_path, 0)(FIVE)
        served.schemas[0] = {"schema": LONG}


def test_a_registry_that_refuses_decides_nothing(served, tmp_path):
    begin(tmp_path, 0)
    served.add(LONG)
    served.fails = [405]
    decode = worker(served, tmp_path, 0)
    with pytest.raises(UnavailableError, match="405 not now"):
        decode(FIVE)
    assert decode(FIVE) == {"a": 5}


def test_the_first_of_several_answers_holds(tmp_path):
    begin(tmp_path, 7)
    at = place(tmp_path, 7)
    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(lambda n: Answers(at).get(3, lambda _: Answer(str(n))), range(100))}
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "7").iterdir()] == ["orders.value.3"]


def test_batches_that_may_be_repeated_are_kept(tmp_path):
    for batch in (0, 1, 2, 2, 5):
        begin(tmp_path, batch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5"]
    begin(tmp_path, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "6"]


def test_a_machine_that_does_not_have_the_folder(tmp_path):
    with pytest.raises(UnavailableError, match="file system that all machines share"):
        Answers(place(tmp_path, 0)).get(1, lambda _: Answer(LONG))
    with pytest.raises(UnavailableError, match="outside of a batch"):
        place(tmp_path, 0).of_batch()
