"""A descriptor set for tests, as protoc writes it: `shop.Order` with a field of each kind, and messages that Spark has
no type for."""

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)

F = descriptor_pb2.FieldDescriptorProto

# (name, number, type, type name, more)
ORDER = [
    ("i32", 1, F.TYPE_INT32, None, {}),
    ("i64", 2, F.TYPE_SINT64, None, {}),
    ("u32", 3, F.TYPE_UINT32, None, {}),
    ("u64", 4, F.TYPE_FIXED64, None, {}),
    ("ok", 5, F.TYPE_BOOL, None, {}),
    ("f", 6, F.TYPE_FLOAT, None, {}),
    ("d", 7, F.TYPE_DOUBLE, None, {}),
    ("s", 8, F.TYPE_STRING, None, {}),
    ("b", 9, F.TYPE_BYTES, None, {}),
    ("kind", 10, F.TYPE_ENUM, ".shop.Kind", {}),
    ("tags", 11, F.TYPE_STRING, None, {"label": F.LABEL_REPEATED}),
    ("kinds", 12, F.TYPE_ENUM, ".shop.Kind", {"label": F.LABEL_REPEATED}),
    ("lines", 13, F.TYPE_MESSAGE, ".shop.Line", {"label": F.LABEL_REPEATED}),
    ("counts", 14, F.TYPE_MESSAGE, ".shop.Order.CountsEntry", {"label": F.LABEL_REPEATED}),
    ("by_name", 15, F.TYPE_MESSAGE, ".shop.Order.ByNameEntry", {"label": F.LABEL_REPEATED}),
    ("line", 16, F.TYPE_MESSAGE, ".shop.Line", {}),
    ("placed", 17, F.TYPE_MESSAGE, ".google.protobuf.Timestamp", {}),
    ("wrapped", 18, F.TYPE_MESSAGE, ".google.protobuf.Int64Value", {}),
    ("note", 19, F.TYPE_STRING, None, {"proto3_optional": True, "oneof_index": 1}),
    ("card", 20, F.TYPE_STRING, None, {"oneof_index": 0}),
    ("cash", 21, F.TYPE_INT64, None, {"oneof_index": 0}),
]
LINE = [("sku", 1, F.TYPE_STRING, None, {}), ("n", 2, F.TYPE_INT32, None, {})]

ORDER_TYPE = (
    "struct<i32:int,i64:bigint,u32:bigint,u64:decimal(20,0),ok:boolean,f:float,d:double,s:string,b:binary,kind:string,"
    "tags:array<string>,kinds:array<string>,lines:array<struct<sku:string,n:int>>,counts:map<int,bigint>,"
    "by_name:map<string,struct<sku:string,n:int>>,line:struct<sku:string,n:int>,placed:timestamp,wrapped:bigint,"
    "note:string,card:string,cash:bigint>"
)


def _message(name, fields):
    message = descriptor_pb2.DescriptorProto(name=name)
    for field, number, kind, type_name, more in fields:
        given = {"label": F.LABEL_OPTIONAL, **more}
        message.field.add(name=field, number=number, type=kind, type_name=type_name, **given)
    return message


def _entry(name, key, value, type_name=None):
    entry = _message(name, [("key", 1, key, None, {}), ("value", 2, value, type_name, {})])
    entry.options.map_entry = True
    return entry


def file_set(*, with_imports=True):
    """The FileDescriptorSet."""
    shop = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    shop.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = shop.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="RETAIL", number=1)
    order = _message("Order", ORDER)
    order.nested_type.extend(
        [
            _entry("CountsEntry", F.TYPE_INT32, F.TYPE_INT64),
            _entry("ByNameEntry", F.TYPE_STRING, F.TYPE_MESSAGE, ".shop.Line"),
        ]
    )
    order.oneof_decl.add(name="payment")
    order.oneof_decl.add(name="_note")
    shop.message_type.extend(
        [
            order,
            _message("Line", LINE),
            _message("Tree", [("left", 1, F.TYPE_MESSAGE, ".shop.Tree", {})]),
            _message("Empty", []),
        ]
    )
    imported = [timestamp_pb2, wrappers_pb2] if with_imports else []
    files = [descriptor_pb2.FileDescriptorProto.FromString(one.DESCRIPTOR.serialized_pb) for one in imported]
    return descriptor_pb2.FileDescriptorSet(file=[*files, shop])


def descriptors(**options):
    """The .desc file's bytes."""
    return file_set(**options).SerializeToString()


def classes():
    """Message classes by full name, made without the module under test."""
    pool = descriptor_pool.DescriptorPool()
    for file in file_set().file:
        pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("shop.Order", "shop.Line")
    }
