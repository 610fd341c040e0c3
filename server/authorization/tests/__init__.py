"""Tests of `server.authorization`."""
