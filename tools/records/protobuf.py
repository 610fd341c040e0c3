"""Protobuf messages as JSON, with a descriptor set that `protoc --include_imports --descriptor_set_out` writes."""

from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from odradek.tools.kafka.similar_names import suggest
from odradek.tools.records.errors import UndecodableError, UnencodableError


class MessageType:
    """A message type of a descriptor set."""

    def __init__(self, descriptor: Any) -> None:
        self.name: str = descriptor.full_name
        self._class = message_factory.GetMessageClass(descriptor)

    def decode(self, data: bytes) -> Any:
        """Return the JSON of a message. Raises UndecodableError."""
        try:
            return json_format.MessageToDict(self._class.FromString(data), preserving_proto_field_name=True)
        except (DecodeError, EncodeError, ValueError, TypeError, json_format.Error) as error:
            raise UndecodableError(f"this is no message {self.name}: {_describe(error)}") from None

    def encode(self, value: Any) -> bytes:
        """Return JSON as a message. Raises UnencodableError."""
        if not isinstance(value, dict):
            raise UnencodableError(f"a message {self.name} must be a JSON object")
        try:
            data: bytes = json_format.ParseDict(value, self._class()).SerializeToString()
        except (EncodeError, ValueError, TypeError, json_format.Error) as error:
            raise UnencodableError(f"the value does not fit message {self.name}: {_describe(error)}") from None
        return data


class DescriptorFiles:
    """Files of a descriptor set, the main one last."""

    def __init__(self, files: Sequence[Any]) -> None:
        """Add the files to a pool. Raises ValueError."""
        self._files = files
        self._pool = descriptor_pool.DescriptorPool()
        known = {file.name for file in files}
        # Descriptor sets of schema registries lack Google's own files.
        wanted = [name for file in files for name in file.dependency if name not in known]
        for name in dict.fromkeys(wanted):
            self._add_well_known(name)
        for file in files:
            try:
                self._pool.AddSerializedFile(file.SerializeToString())
            except Exception as error:
                reason = _describe(error)
                raise ValueError(f"{file.name} cannot be used: {reason}; was --include_imports given?") from None

    @classmethod
    def parse(cls, data: bytes) -> "DescriptorFiles":
        """Parse a descriptor set. Raises ValueError."""
        files = descriptor_pb2.FileDescriptorSet()
        try:
            files.ParseFromString(data)
        except DecodeError:
            raise ValueError("this is no descriptor set of protoc --descriptor_set_out") from None
        if not files.file:
            raise ValueError("this descriptor set has no files")
        return cls(files.file)

    def find(self, name: str | None) -> MessageType:
        """Return a message type; the first of the main file without a name. Raises ValueError."""
        names = [*self._iter_names()]
        if name is None:
            if not names:
                raise ValueError("there is no message type")
            name = names[0]
        try:
            return MessageType(self._pool.FindMessageTypeByName(name))
        except KeyError:
            listed = ", ".join(names[:10])
            raise ValueError(f"there is no message {name}{suggest(name, names) or f', only {listed}'}") from None

    def find_by_index(self, indexes: Sequence[int]) -> MessageType:
        """Return a message type by its index in the main file, then by those in its enclosing types.

        Raises UndecodableError.
        """
        file = self._pool.FindFileByName(self._files[-1].name)
        try:
            first, *rest = indexes
            found = file.message_types_by_name[self._files[-1].message_type[first].name]
            for index in rest:
                found = found.nested_types[index]
        except (IndexError, ValueError):
            raise UndecodableError(f"{file.name} has no message type {'.'.join(map(str, indexes))}") from None
        return MessageType(found)

    def find_index(self, name: str) -> list[int]:
        """Return the indexes that `find_by_index` takes of a type in the main file. Raises ValueError."""
        main = self._files[-1]
        relative = name.removeprefix(f"{main.package}.") if main.package else name
        types, indexes = main.message_type, []
        for part in relative.split("."):
            names = [each.name for each in types]
            if part not in names:
                raise ValueError(f"there is no message {name} in {main.name}")
            indexes.append(names.index(part))
            types = types[indexes[-1]].nested_type
        return indexes

    def _iter_names(self) -> Iterator[str]:
        for file in reversed(self._files):
            for one in file.message_type:
                yield f"{file.package}.{one.name}" if file.package else one.name

    def _add_well_known(self, name: str) -> None:
        # Their modules add them to the default pool.
        if name.startswith("google/protobuf/"):
            from importlib import import_module

            module = import_module(
                f"google.protobuf.{name.removeprefix('google/protobuf/').removesuffix('.proto')}_pb2"
            )
            data = module.DESCRIPTOR.serialized_pb
            for dependency in module.DESCRIPTOR.dependencies:
                self._add_well_known(dependency.name)
            self._pool.AddSerializedFile(data)


def _describe(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
