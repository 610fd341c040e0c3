"""Data files of an Iceberg table, which are written first and then added to the table by a conditional commit.

Spark's append is unconditional: Iceberg retries it after rows that another driver has added. So Spark writes the
files without a commit, as for compaction (`FileRewriteCoordinator`). Then an update adds the files; it fails
if rows were added after a given snapshot. Iceberg validates this again on each retry, and the catalog replaces the
table's metadata only if they are unchanged since the validation.

Source: Iceberg 1.10, OverwriteFiles, SparkWrite.RewriteFiles, MergingSnapshotProducer.validateAddedDataFiles.
"""

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any, Self

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from odradek.spark_it.spark.java import list_class_names

_STAGED = "rewritten-file-scan-task-set-id"
_WITH_ROW_IDS = "rewrite"
_CONFLICT = "org.apache.iceberg.exceptions.ValidationException"
_NOT_COMMITTED = (_CONFLICT, "org.apache.iceberg.exceptions.CommitFailedException")


def find_staging_name(spark: SparkSession, name: str, table: Any) -> str:
    """Return the table name with which Spark writes data files without a commit.

    If the table's format has row ids (version 3), the named table has columns for them. The commit assigns an id to a
    row with null.
    """
    jvm: Any = spark._jvm
    has_row_ids = jvm.org.apache.iceberg.TableUtil.supportsRowLineage(table)
    return f"{name}.{_WITH_ROW_IDS}" if has_row_ids else name


class DataFiles:
    """Data files that Spark has written and no snapshot contains yet. The context manager deletes files that were not
    added."""

    def __init__(self, frame: DataFrame, name: str, table: Any) -> None:
        """Write the rows; `name` is the table's `find_staging_name`. Raises Spark's errors."""
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
        """Commit the files, with a summary for the snapshot. Return false, without a commit, if rows were added since
        snapshot `after`, which is None for a table without snapshots.

        Without files there is no commit. Raises Iceberg's errors.
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
        # After most errors it is unknown whether the commit succeeded.
        self._may_be_added = True
        try:
            update.commit()
        except Py4JJavaError as error:
            names = list_class_names(error.java_exception)
            self._may_be_added = not any(name in _NOT_COMMITTED for name in names)
            if _CONFLICT in names and self._has_new_snapshot(after):
                return False
            raise
        return True

    def _has_new_snapshot(self, after: Any) -> bool:
        self._table.refresh()
        newest = self._table.currentSnapshot()
        return newest is not None and (after is None or newest.snapshotId() != after.snapshotId())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._may_be_added:
            # A file that cannot be deleted only occupies space.
            with contextlib.suppress(Py4JError):
                for file in self._files:
                    self._table.io().deleteFile(file.location())
