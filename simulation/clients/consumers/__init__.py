"""Simulated clients that read, and members of groups.

- `fetching`: the Fetch request, fetch sessions and positions
- `offsets`: ListOffsets, OffsetFetch, OffsetCommit
- `membership`: a member of a classic group
- `truncation`: detection of truncations, with OffsetForLeaderEpoch
- `assigned`: a consumer of chosen partitions
- `scanner`: a consumer that reads whole partitions again and again
- `group_consumer`: a consumer in a group
- `copier`: read-process-write
- `brief_offsets`: offsets with a retention time
"""
