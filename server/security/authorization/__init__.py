"""Authorization: what a principal may do.

- `operations`: resource types and operations
- `authorizer`: the interface of an authorizer
"""
