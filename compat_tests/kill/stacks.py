"""Stacks of threads that do not end."""

import sys
import threading
import traceback


def format_stack(thread: threading.Thread) -> str:
    """Return the stack of a running thread, whose last line is a call of a client's library if that hangs."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else ""
