"""Stacks of threads that do not end."""

import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator

GDB_S = 120
_THREAD = re.compile(r'Thread .*\(LWP (\d+)\)(?: "(.*)")?')
_FRAME = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?([\w:.]+)")


def format_stack(thread: threading.Thread) -> str:
    """Return the stack of a running thread, whose last line is a call of a client's library if that hangs."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else ""


def describe_library_stacks(thread: threading.Thread) -> Iterator[str]:
    """Describe the calls within librdkafka of a thread that called it, and those of all of its own threads.

    Each line has a thread's name and its functions, the innermost first. It needs gdb.
    """
    gdb = shutil.which("gdb")
    if gdb is None:
        yield "gdb is not installed: librdkafka's stacks are unknown"
        return
    command = [gdb, "-p", str(os.getpid()), "-batch", "-ex", "thread apply all bt 20"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=GDB_S).stdout
    except subprocess.TimeoutExpired:
        yield f"gdb did not end in {GDB_S} s"
        return
    yield from select_library_stacks(output, thread.native_id)


def select_library_stacks(output: str, native_id: int | None) -> Iterator[str]:
    """Return the stacks of librdkafka's threads, and that of the thread `native_id`, from gdb's output."""
    name, functions = "", list[str]()
    for line in [*output.splitlines(), 'Thread 0 (Thread 0x0 (LWP 0) "end"):']:
        if (thread := _THREAD.match(line)) is not None:
            if name:
                yield f"{name}: {' < '.join(functions)}"
            is_caller = int(thread[1]) == native_id
            name = "the calling thread" if is_caller else thread[2] or ""
            if not is_caller and not name.startswith("rdk:"):
                name = ""
            functions = []
        elif (frame := _FRAME.match(line)) is not None and "rd_kafka" in frame[1]:
            functions.append(frame[1])
