"""The controller, and the admin requests that it executes.

- `controller`: the controller, composed of the parts below
- `events`: the event loop
- `context`: role, epoch, the controller's own image, fenced writes
- `registration`: the store's layout and the broker's registration
- `repetition`: the repetition of failed work at growing intervals
- `races`: the repetition of writes that another broker preceded
- `restarts`: marks of registrations that no controller has followed
- `store_changes`: watches on the store, and updates of the image when they fire
- `states`: states of partitions and replicas
- `topics`: creation, change and deletion of topics
- `partitions`: changes of leaders, ISRs and replicas
- `configs`: configurations of topics, brokers and groups
- `acl_changes`: changes of access control lists
- `token_changes`: changes of delegation tokens
- `propagation`: requests to the brokers of a cluster
- `leader_rebalance`: regular returns of leadership to preferred replicas
- `admin`: validation and execution of admin requests
"""
