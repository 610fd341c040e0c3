"""Twins of the tasks that stage a batch for a database: tasks that Spark considers lost, but that still write."""

from odradek.spark_it.sinks.jdbc import JdbcTable
from odradek.spark_it.sinks.jdbc_staging import StagingTable

WROTE = "twins have written"
MOMENTS = {
    "staged": (StagingTable, "fill"),
    "checked": (StagingTable, "read_segments"),
    "taken over": (JdbcTable, "_insert_all"),
}
"""The step of the driver after which the twins write."""


def write_once(moment, say):
    """Let twins write the rows of the next batch that is staged in this process, then `say` that they have."""
    owner, name = MOMENTS[moment]
    step, fill = getattr(owner, name), StagingTable.fill
    staged = {}

    def kept(staging, rows, batch_size):
        staged[staging] = (rows, batch_size)
        fill(staging, rows, batch_size)

    def and_twins(*arguments):
        found = (kept if step is fill else step)(*arguments)
        setattr(owner, name, step)
        staging = next(argument for argument in arguments if isinstance(argument, StagingTable))
        fill(staging, *staged[staging])
        say(WROTE)
        return found

    StagingTable.fill = kept
    setattr(owner, name, and_twins)
