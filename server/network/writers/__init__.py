"""Writers of responses, and what they wait for.

- `socket_writer`: the writer of a plaintext connection
- `region_loader`: reads of file regions from the disk in threads
- `write_coalescer`: small responses, sent together at the end of a reactor iteration
"""
