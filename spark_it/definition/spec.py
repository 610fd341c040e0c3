"""The pipeline that a file declares: plain objects, built by `reader` and checked by `static_checks`."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odradek.spark_it.definition.settings import (
    AVAILABLE_NOW,
    ErrorSettings,
    ExpectationSettings,
    PipelineSettings,
    TransformSettings,
)
from odradek.spark_it.definition.sink_keys import Sink
from odradek.spark_it.definition.source_keys import Source
from odradek.spark_it.definition.toml_lines import Lines
from odradek.spark_it.sql import tokens

Row = Mapping[str, Any]
"""Column names and TOML values."""


@dataclass(frozen=True)
class Expectation:
    """A condition on the rows of `table`, a source or a transform."""

    table: str
    name: str
    settings: ExpectationSettings


@dataclass(frozen=True)
class Case:
    """One `[[test]]`: given rows by source, and expected rows by transform. Key None is the input of the sink."""

    name: str
    given: Mapping[str, tuple[Row, ...]]
    expect: Mapping[str | None, tuple[Row, ...]]
    dead_letters: int | None


@dataclass(frozen=True)
class Pipeline:
    """A pipeline. `folder` contains the file; relative paths start there. `lines` has the line of each key."""

    file: str
    folder: Path
    settings: PipelineSettings
    sources: Mapping[str, Source]
    transforms: tuple[TransformSettings, ...]
    expectations: tuple[Expectation, ...]
    sink: Sink
    errors: ErrorSettings
    cases: tuple[Case, ...]
    lines: Lines

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def state_folder(self) -> Path:
        """The folder of checkpoint, lock and progress."""
        return Path(os.path.normpath(self.folder / self.settings.home / self.name))

    @property
    def batches_group(self) -> str:
        """The group whose offsets are the markers of batch transactions. Pipeline names cannot contain a colon, so no
        pipeline has this name."""
        return f"{self.name}:batches"

    @property
    def replay_group(self) -> str:
        """The group whose offsets record the replayed dead letters."""
        return f"{self.name}:replay"

    @property
    def sink_input(self) -> str | None:
        """The table that the sink writes; None if the file does not name it and it is ambiguous."""
        if self.sink.input is not None:
            return self.sink.input
        if self.transforms:
            return self.transforms[-1].name
        return next(iter(self.sources)) if len(self.sources) == 1 else None

    def locate_path(self, text: str) -> str:
        """Return a path from the file as an absolute path without `..`, as Hadoop writes it. Addresses such as
        s3a://bucket are returned unchanged."""
        return text if "://" in text else os.path.normpath((self.folder / text).absolute())

    def with_available_now(self) -> "Pipeline":
        """Return the pipeline with trigger available-now, on which some sources depend."""
        return replace(self, settings=self.settings.replace({"trigger": AVAILABLE_NOW}))

    def find_transform(self, name: str) -> TransformSettings | None:
        return next((step for step in self.transforms if step.name.casefold() == name.casefold()), None)

    def list_inputs(self, step: TransformSettings) -> list[str]:
        """Return the names of the tables that a step reads, in its spelling. The tables need not exist."""
        if step.sql is not None:
            return list(dict.fromkeys(table.text for table in tokens.find_tables(tokens.tokenize(step.sql))))
        if step.input:
            return list(step.input)
        at = self.transforms.index(step)
        if at:
            return [self.transforms[at - 1].name]
        return list(self.sources) if len(self.sources) == 1 else []

    def list_steps_to(self, name: str | None) -> Iterator[TransformSettings]:
        """Return the transforms that `name` depends on, itself included, in the order of the file."""
        needed = {name.casefold()} if name else set()
        for step in reversed(self.transforms):
            if step.name.casefold() in needed:
                needed.update(read.casefold() for read in self.list_inputs(step))
        return (step for step in self.transforms if step.name.casefold() in needed)
