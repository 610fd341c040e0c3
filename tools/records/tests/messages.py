"""Records and Protobuf files for tests."""

from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import FieldDescriptorProto  # type: ignore[import-untyped]

from odradek.tools.records.record import CREATE_TIME, Record

LABEL = FieldDescriptorProto.LABEL_OPTIONAL


def make_record(key=b"k", value=b"v", headers=(), **changes):
    record = Record("orders", 2, 7, CREATE_TIME, 1_700_000_000_000, key, value, headers, 1, 1)
    return record._replace(**changes)


def make_proto_file(name="orders.proto", dependency=()):
    """shop.Other; shop.Order with id, note, a nested Line, and a time if there is a dependency."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=dependency)
    file.message_type.add(name="Other").field.add(
        name="id", number=1, type=FieldDescriptorProto.TYPE_INT32, label=LABEL
    )
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=LABEL)
    order.field.add(name="unit_note", number=2, type=FieldDescriptorProto.TYPE_STRING, label=LABEL)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=FieldDescriptorProto.TYPE_STRING, label=LABEL)
    if dependency:
        time = order.field.add(name="time", number=3, type=FieldDescriptorProto.TYPE_MESSAGE, label=LABEL)
        time.type_name = ".google.protobuf.Timestamp"
    return file


def make_descriptor_set(*files):
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
