"""Answers of a registry that hold for a batch. Each `worker` starts with empty caches, as a new process does."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from odradek.spark_it.formats.avro import make_registry_decoder
from odradek.spark_it.formats.avro_codec import RecordError
from odradek.spark_it.formats.columns import UnavailableError
from odradek.spark_it.formats.registry import RegistryAddress, add_schema_id, get_registry
from odradek.spark_it.formats.stored_responses import ResponseLocation, SchemaResponse, StoredResponses, begin_batch
from spark_it.tests.fake_registry import serving
from spark_it.tests.unit.test_formats_avro import record

LONG = json.dumps(record("long"))
FIVE = add_schema_id(1, b"\x0a")


@pytest.fixture
def served():
    with serving() as registry:
        yield registry


def place(folder, batch):
    return ResponseLocation(str(folder / str(batch)), "orders.value")


def worker(served, folder, batch):
    get_registry.cache_clear()
    return make_registry_decoder.__wrapped__(RegistryAddress(served.url), LONG, place(folder, batch))


def test_an_id_stays_unknown_for_the_batch_and_known_for_the_next_ones(served, tmp_path):
    begin_batch(tmp_path, 0)
    with pytest.raises(RecordError, match="the registry has no schema 1"):
        worker(served, tmp_path, 0)(FIVE)
    served.add(LONG)
    with pytest.raises(RecordError, match="the registry has no schema 1"):
        worker(served, tmp_path, 0)(FIVE)
    begin_batch(tmp_path, 1)
    assert worker(served, tmp_path, 1)(FIVE) == {"a": 5}
    served.schemas.clear()
    assert worker(served, tmp_path, 1)(FIVE) == {"a": 5}


def test_a_schema_that_is_not_avro_is_refused_for_the_whole_batch(served, tmp_path):
    begin_batch(tmp_path, 0)
    served.add(LONG, schemaType="JSON")
    for _ in range(2):
        with pytest.raises(RecordError, match="schema 1 is JSON and not AVRO"):
            worker(served, tmp_path, 0)(FIVE)
        served.schemas[0] = {"schema": LONG}


def test_a_refusal_of_the_registry_is_not_stored(served, tmp_path):
    begin_batch(tmp_path, 0)
    served.add(LONG)
    served.fails = [405]
    decode = worker(served, tmp_path, 0)
    with pytest.raises(UnavailableError, match="405 not now"):
        decode(FIVE)
    assert decode(FIVE) == {"a": 5}


def test_the_first_of_several_answers_holds(tmp_path):
    begin_batch(tmp_path, 7)
    at = place(tmp_path, 7)
    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(lambda n: StoredResponses(at).get(3, lambda _: SchemaResponse(str(n))), range(100))}
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "7").iterdir()] == ["orders.value.3"]


def test_batches_that_may_be_repeated_are_kept(tmp_path):
    for batch in (0, 1, 2, 2, 5):
        begin_batch(tmp_path, batch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5"]
    begin_batch(tmp_path, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "6"]


def test_a_machine_without_the_folder(tmp_path):
    with pytest.raises(UnavailableError, match="file system that all machines share"):
        StoredResponses(place(tmp_path, 0)).get(1, lambda _: SchemaResponse(LONG))
    with pytest.raises(UnavailableError, match="outside of a batch"):
        place(tmp_path, 0).get_batch_location()
