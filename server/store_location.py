"""Location of a broker's metadata store: ZooKeeper, or any directory of log.dirs, the first one for a new store.

If log.dirs has partitions, a store is created only for their adoption (log.dirs.adopt): the store with their topics and
configurations may be in a missing directory.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from odradek.log.storage.checkpoints import MalformedFileError, MetaProperties, read_meta_properties
from odradek.log.storage.filesystem import FileSystem
from odradek.log.storage.found_directories import find_partitions, format_names
from odradek.properties import PropertyError
from odradek.replication.controller.registration import StartError, stored_cluster_id
from odradek.replication.metadata import znodes
from odradek.replication.metadata.store import MetadataStore, MetadataStoreError, NoNodeError
from odradek.replication.metadata.topic_names import CLUSTER_METADATA_TOPIC, is_topic_name
from odradek.replication.replicas.adoption import is_in_progress
from odradek.server.config import BrokerConfig
from odradek.server.environment import Environment

if TYPE_CHECKING:
    from odradek.replication.metadata.kraft_metadata import KraftMetadata

logger = logging.getLogger(__name__)


class EmbeddedStore(NamedTuple):
    """An open embedded store. `is_adopting`: topics in the log directories are not in it, and are to be adopted."""

    store: MetadataStore
    is_adopting: bool


async def open_store(environment: Environment, directories: list[str], *, adopts: bool) -> EmbeddedStore:
    """Open the store of the broker with these log directories.

    With `adopts`, the store may be created although there are partitions. Raises StartError, MetadataStoreError.
    """
    unreadable, candidates = _find_candidates(environment, directories)
    opened: dict[str, MetadataStore] = {}
    try:
        for directory in candidates:
            _check_writable(environment, directory)
            store = opened[directory] = environment.open_metadata_store(directory)
            if await store.exists(znodes.CLUSTER_ID) is None:
                # The broker crashed before the first commit.
                await opened.pop(directory).close()
        if len(opened) > 1:
            raise StartError(
                f"log.dirs has more than one metadata store, in {' and in '.join(opened)}; move all but the current "
                "one out of log.dirs"
            )
        if opened:
            [store] = opened.values()
            return EmbeddedStore(store, await is_in_progress(store))
    except BaseException:
        for store in opened.values():
            await store.close()
        raise
    if unreadable:
        names = " and ".join(f"{directory} ({error.strerror})" for directory, error in unreadable)
        is_denied = any(isinstance(error, PermissionError) for _, error in unreadable)
        remedy = "give it to the user that runs the broker" if is_denied else "repair it"
        raise StartError(
            f"log directory {names} cannot be read, and no other directory of log.dirs has the metadata store; "
            f"{remedy}, or remove it from log.dirs"
        )
    if not adopts:
        _refuse_partitions(environment.fs, directories)
    _make_directory(environment, directories[0])
    return EmbeddedStore(environment.open_metadata_store(directories[0]), adopts)


async def open_zookeeper_store(environment: Environment, config: BrokerConfig) -> MetadataStore:
    """Connect to ZooKeeper, for a broker with `zookeeper.connect`.

    Raises StartError, also if the log directories belong to another cluster than ZooKeeper, or ZooKeeper has none.
    """
    try:
        store = environment.make_zookeeper_store(config)
    except PropertyError as error:
        raise StartError(str(error)) from error
    try:
        await store.connect()
        await _check_cluster_id(environment, config, store)
    except MetadataStoreError as error:
        await store.close()
        raise StartError(str(error)) from error
    except BaseException:
        await store.close()
        raise
    return store


async def _check_cluster_id(environment: Environment, config: BrokerConfig, store: MetadataStore) -> None:
    """Raise StartError if log directories belong to another cluster: their partitions would be treated as stray."""
    try:
        stored = await stored_cluster_id(store)
    except NoNodeError:
        stored = ""
    for directory, meta in read_metas(environment.fs, map(environment.absolute_path, config.data_dirs)):
        if meta.cluster_id and meta.cluster_id != stored:
            has = f"has cluster {stored}" if stored else "has no cluster"
            raise StartError(
                f"log directory {directory} belongs to cluster {meta.cluster_id}, but ZooKeeper "
                f"(zookeeper.connect={config.zookeeper_connect}) {has}; correct zookeeper.connect or log.dirs"
            )


def read_metas(fs: FileSystem, directories: Iterable[str]) -> Iterator[tuple[str, MetaProperties]]:
    """Iterate over the log directories whose meta.properties exists and can be read."""
    for directory in directories:
        try:
            meta = read_meta_properties(fs, directory)
        except (OSError, MalformedFileError):
            # The load of the directory fails with the same error, which is then reported.
            continue
        if meta is not None:
            yield directory, meta


def _find_candidates(
    environment: Environment, directories: list[str]
) -> tuple[list[tuple[str, OSError]], list[str]]:
    """Return the directories that cannot be read, with the reason, and those with the file of a store."""
    unreadable: list[tuple[str, OSError]] = []
    candidates: list[str] = []
    for directory in directories:
        try:
            if environment.has_metadata_store(directory):
                candidates.append(directory)
        except OSError as error:
            unreadable.append((directory, error))
    return unreadable, candidates


def _refuse_partitions(fs: FileSystem, directories: list[str]) -> None:
    found = []
    for directory in directories:
        names = find_partitions(fs, directory, is_topic_name)
        if names:
            found.append(f"{directory} ({len(names)}: {format_names(names)})")
    if found:
        raise StartError(
            f"log.dirs has partitions, in {'; '.join(found)}, but no metadata store; add the directory with the store "
            "to log.dirs, or set log.dirs.adopt=true to create a store for the topics found"
        )
    for directory in directories:
        path = f"{directory}/{CLUSTER_METADATA_TOPIC}-0"
        if fs.exists(path):
            # Without an adoption its users and ACLs would be ignored silently.
            raise StartError(
                f"log.dirs has metadata of Apache Kafka, in {path}, but no metadata store; set log.dirs.adopt=true to "
                "adopt its users, ACLs and topics, or move it away"
            )


def _make_directory(environment: Environment, directory: str) -> None:
    try:
        environment.fs.make_directory(directory)
    except OSError as error:
        raise StartError(f"cannot create log directory {directory}: {error.strerror}; check log.dirs") from error
    _check_writable(environment, directory)


def _check_writable(environment: Environment, directory: str) -> None:
    if not environment.is_writable(directory):
        raise StartError(f"log directory {directory} is not writable; check log.dirs")


class FoundMetadata(NamedTuple):
    """Apache Kafka's metadata, and the directory of its log."""

    metadata: "KraftMetadata"
    log_directory: str


def find_kraft_metadata(fs: FileSystem, directories: list[str]) -> FoundMetadata | None:
    """Return Apache Kafka's metadata in these directories; None if there is none.

    Metadata that was adopted before, and not changed since, is ignored: the topics have changed without it. Raises
    StartError, OSError.
    """
    # Imported here because only an adoption needs the records of Apache Kafka's metadata.
    from odradek.replication.metadata.kraft_metadata import (
        DIRECTORY,
        KraftMetadataError,
        adopted_offset,
        read_kraft_metadata,
    )

    found = []
    for directory in directories:
        try:
            metadata = read_kraft_metadata(fs, directory)
        except KraftMetadataError as error:
            raise StartError(
                f"the metadata of Apache Kafka is damaged: {error}; move {directory}/{DIRECTORY} away to adopt the "
                "topics without their configuration, and no ACLs, users and quotas"
            ) from error
        if metadata is None:
            continue
        if adopted_offset(fs, directory) >= metadata.end_offset:
            logger.warning("metadata of Apache Kafka is ignored: it was adopted before directory=%s", directory)
            continue
        found.append(FoundMetadata(metadata, directory))
    if len(found) > 1:
        raise StartError(
            f"there is metadata of Apache Kafka in {' and in '.join(one.log_directory for one in found)}; move the "
            f"outdated {DIRECTORY} away"
        )
    return found[0] if found else None
