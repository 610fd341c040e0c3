"""Time limits of tests that start processes, in seconds.

Only a hang reaches one of them: each is several times the duration on a slow machine whose cores run other tests too.
After `TEST_S` pytest-timeout ends a test that has no limit of its own.
"""

TEST_S = 600
LONG_TEST_S = 1800
"""For a test that takes half a minute alone."""
CONDITION_S = 60
"""For a condition that is usually true within a second."""
COMMANDS_S = 600
"""For the commands of a page of the documentation in one shell, or of an installation."""
TOOL_S = 300
"""For a Java tool, from its start to its end."""
BROKER_START_S = 180
BROKER_STOP_S = 120
SPARK_ARCHIVE_S = 600
"""For a Spark that starts, runs a query and stores its classes in an archive."""
SPARK_PROCESS_S = 1200
"""For a process that starts Spark and runs the tests and the batches of an example."""

KILLS_S = 2400
"""For a test that kills a broker or copiers again and again under load."""
CLIENT_START_S = 120
"""For the first acknowledged record of every writer."""
ANSWERS_S = 180
"""For the outcomes of records sent, and the end of a client."""
READ_S = 180
"""For coordinators that load, markers that are written, and all records of a topic."""
CAUGHT_UP_S = 300
"""For readers that reach the end of all partitions."""
COPIED_S = 600
"""For copiers that finish after the last kill."""

PIPELINES_KILLED_S = 3600
"""For the test that kills the pipelines of all sinks."""
ALL_IN_A_BATCH_S = 1500
"""For the pipelines of all sinks to start and to be in a batch at the same time."""
ALL_READ_S = 1800
"""For the pipelines of all sinks to read everything, or to be refused."""
