"""Commands and tools that administer a cluster: reassignments, elections, topics, groups and status."""
