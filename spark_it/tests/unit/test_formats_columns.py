import json
import math

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from pyspark.sql.pandas.types import to_arrow_type

from odradek.spark_it.formats.avro_codec import make_decoder
from odradek.spark_it.formats.avro_types import to_spark_type
from odradek.spark_it.formats.columns import UnavailableError, decode_batch
from odradek.spark_it.formats.protobuf import make_decoder as message_decoder
from spark_it.tests.unit.test_formats_avro import by_fastavro, record


@pytest.mark.parametrize(
    ("of", "good"),
    [
        ("int", 5),
        ({"type": "int", "logicalType": "date"}, 5),
        ({"type": "int", "logicalType": "time-millis"}, 5),
        (["null", "int"], None),
    ],
)
@pytest.mark.parametrize("number", [2**40, 2**31, -(2**31) - 1])
def test_a_number_that_an_int_does_not_hold_is_an_error_of_its_record(of, good, number):
    schema = record(of)
    branch = b"\x02" if isinstance(of, list) else b""
    bad = branch + by_fastavro("long", number)
    fits = by_fastavro(schema, {"a": good})
    arrow_type = to_arrow_type(to_spark_type(schema, "S"))
    made, errors = decode_batch([fits, bad, None, b"", fits], make_decoder(json.dumps(schema)), arrow_type)
    assert made.is_valid().to_pylist() == [True, False, False, False, True]
    assert [error is None for error in errors] == [True, False, True, False, True]
    assert errors[1].startswith("a column cannot hold a value of the record: ")
    assert errors[3] == "the record is truncated"


@pytest.mark.parametrize("label", [1, 3])
def test_a_string_of_proto2_that_is_not_utf8_is_an_error_of_its_record(label):
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    file.message_type.add(name="Old").field.add(name="s", number=1, type=9, label=label)
    old = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    of_field = pa.string() if label == 1 else pa.list_(pa.string())
    given = [b"\x0a\x01\xff", b"\x0a\x01x"]
    made, errors = decode_batch(given, message_decoder(old, "Old"), pa.struct([("s", of_field)]))
    assert made.to_pylist() == [None, {"s": "x" if label == 1 else ["x"]}]
    [bad, good] = errors
    assert bad is not None and "utf8" in bad and good is None


def test_nan_is_not_null():
    made, errors = decode_batch([by_fastavro("double", math.nan), None], make_decoder('"double"'), pa.float64())
    assert math.isnan(made[0].as_py()) and made.null_count == 1 and errors == [None, None]


def test_an_unavailable_registry_is_not_an_error_of_a_record():
    def away(data):
        raise UnavailableError("away")

    with pytest.raises(UnavailableError):
        decode_batch([b"x"], away, pa.int64())
