"""Data files of an Iceberg table: written first, then added to the table on a condition.

Spark's append has no condition: Iceberg applies it after whatever another driver has added since the table was read. So
Spark writes the files without a commit, as it does for compaction (`FileRewriteCoordinator`), and an update adds them
that fails if rows were added after a given snapshot. Iceberg checks that again on each retry, and the catalog replaces
the table's metadata only if they are unchanged since the check.

Source: Iceberg 1.10, OverwriteFiles, SparkWrite.RewriteFiles, MergingSnapshotProducer.validateAddedDataFiles.
"""

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any, Self

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from odradek.spark_it.spark.java import kinds

_STAGED = "rewritten-file-scan-task-set-id"
_WITH_ROW_IDS = "rewrite"
_CONFLICT = "org.apache.iceberg.exceptions.ValidationException"
_NOT_COMMITTED = (_CONFLICT, "org.apache.iceberg.exceptions.CommitFailedException")


def staging_name(spark: SparkSession, name: str, table: Any) -> str:
    """The name under which Spark writes data files of a table without a commit.

    What is written so has the columns of the row ids as well, if the table's format has them (version 3). Null in them
    stands for an id that the commit gives.
    """
    jvm: Any = spark._jvm
    has_row_ids = jvm.org.apache.iceberg.TableUtil.supportsRowLineage(table)
    return f"{name}.{_WITH_ROW_IDS}" if has_row_ids else name


class DataFiles:
    """Files that Spark has written and that no snapshot has yet. The context deletes those that were not added."""

    def __init__(self, frame: DataFrame, name: str, table: Any) -> None:
        """Writes the rows; `name` is the table's `staging_name`. Raises what Spark does."""
        self._table = table
        jvm: Any = frame.sparkSession._jvm
        self._jvm = jvm
        set_id = f"odradek-{uuid.uuid4()}"
        frame.writeTo(name).option(_STAGED, set_id).append()
        coordinator = jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get()
        self._files = list(coordinator.fetchNewFiles(table, set_id))
        coordinator.clearRewrite(table, set_id)
        self._may_be_added = False

    def add(self, after: Any, summary: Mapping[str, str]) -> bool:
        """Commits the files, with a summary for the snapshot; false, and nothing is committed, if rows were added since
        snapshot `after`, which is None for a table that has none.

        No files are no commit. Raises what Iceberg does.
        """
        if not self._files:
            return True
        update = self._table.newOverwrite()
        for file in self._files:
            update.addFile(file)
        if after is not None:
            update.validateFromSnapshot(after.snapshotId())
        update.conflictDetectionFilter(self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue())
        update.validateNoConflictingData()
        for key, value in summary.items():
            update.set(key, value)
        # Of most errors it is unknown whether they came before the commit or after it.
        self._may_be_added = True
        try:
            update.commit()
        except Py4JJavaError as error:
            names = kinds(error.java_exception)
            self._may_be_added = not any(name in _NOT_COMMITTED for name in names)
            if _CONFLICT in names and self._has_moved_on(after):
                return False
            raise
        return True

    def _has_moved_on(self, after: Any) -> bool:
        self._table.refresh()
        newest = self._table.currentSnapshot()
        return newest is not None and (after is None or newest.snapshotId() != after.snapshotId())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._may_be_added:
            # What cannot be deleted takes room and nothing else.
            with contextlib.suppress(Py4JError):
                for file in self._files:
                    self._table.io().deleteFile(file.location())
