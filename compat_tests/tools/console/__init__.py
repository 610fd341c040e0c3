"""Tests of `odradek console`: its pages over HTTP, and in headless Chromium.

- `chromium`: a browser, driven through the DevTools protocol
"""
