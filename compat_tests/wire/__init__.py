"""Requests, responses and connections on the wire: bad input, limits, and details of responses."""
