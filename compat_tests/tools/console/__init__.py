"""Tests of `odradek console`: its pages over HTTP, and in headless Chromium.

- `chromium`: a browser, driven through the DevTools protocol
- `page_checks`: width, contrast, labels and focus of a page; ODRADEK_SCREENSHOTS=FOLDER writes each checked page as PNG
"""
