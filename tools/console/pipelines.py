"""States of pipelines, read from the files of each on this machine."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.definition.reader import load
from odradek.spark_it.definition.source_keys import TopicSource
from odradek.spark_it.state.checkpoint import CheckpointError
from odradek.spark_it.state.lock import LockError, read_lock
from odradek.spark_it.state.status import PipelineState, read_state


class ShownPipeline(NamedTuple):
    """A pipeline; `state` is None if it cannot be read, for the reason in `error`.

    reads_topics: it has a topic source, so that its group has a lag
    servers: its `bootstrap.servers`
    """

    file: str
    state: PipelineState | None = None
    reads_topics: bool = False
    servers: tuple[str, ...] = ()
    error: str = ""

    @property
    def name(self) -> str:
        """Return the name of the pipeline, or that of its file."""
        return Path(self.file).stem if self.state is None else self.state.name

    def is_of_cluster(self, address: str) -> bool:
        """Return whether one of its brokers is among the addresses of a cluster, as far as these tell."""
        return not _normalize(self.servers).isdisjoint(_normalize(address.split(",")))


def list_pipelines(paths: Sequence[Path]) -> list[ShownPipeline]:
    """Return the pipelines of files, and of the `*.toml` files in folders."""
    return [_read(file) for file in _find_files(paths)]


def _find_files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.toml"))
        else:
            yield path


def _read(file: Path) -> ShownPipeline:
    try:
        pipeline = load(file, os.environ)
        state = read_state(pipeline, read_lock(pipeline.state_folder))
    except (PipelineError, LockError, CheckpointError) as error:
        return ShownPipeline(str(file), error=str(error))
    except RecursionError:
        return ShownPipeline(str(file), error=f"{file} is nested too deeply")
    except OSError as error:
        return ShownPipeline(str(file), error=f"{error.filename or file}: {error.strerror or error}")
    reads_topics = any(isinstance(source, TopicSource) for source in pipeline.sources.values())
    return ShownPipeline(str(file), state, reads_topics, tuple(pipeline.settings.bootstrap_servers))


def _normalize(servers: Iterable[str]) -> set[str]:
    return {re.sub(r"^(127\.0\.0\.1|\[::1\]):", "localhost:", server.strip().lower()) for server in servers}
