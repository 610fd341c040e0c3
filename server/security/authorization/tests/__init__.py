"""Tests of authorization."""
