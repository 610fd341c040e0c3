"""The controller, and the admin requests that it executes.

- `controller`: the controller, composed of the parts below
- `events`: the event loop
- `context`: role, epoch, the controller's own image, fenced writes
- `registration`: the store's layout and the broker's registration
- `partition_states`: states of partitions, and the election of leaders
- `epoch_floor`: least leader epochs, from what the log directories contain
- `topic_changes`: changes of topics and partitions
- `topic_deletion`: deletion in two steps
- `store_changes`: watches on the store, and updates of the image when they fire
- `topic_admin`: validation of CreateTopics, CreatePartitions and DeleteTopics
- `topic_ids`: random ids
- `assignment`: replicas of new partitions
- `log_capacity`: file descriptors for new logs
- `configs`: configurations and their admin requests
- `features`: finalized features
"""
