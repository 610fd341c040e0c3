"""Authorization: what a principal may do.

- `operations`: resource types and operations
- `authorizer`: the interface of an authorizer
- `acl_index`: ACLs indexed by resource, and the decision by them
- `audit_log`: the log of denials
- `acl_authorizer`: the built-in authorizer
- `needs`: the operations that APIs need
- `rights`: the rights of the client of one request
"""
