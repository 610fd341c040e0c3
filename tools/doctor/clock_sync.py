"""The synchronisation of this machine's clock, as the kernel reports it by adjtimex(2)."""

import ctypes
from typing import Final, NamedTuple

_TIME_ERROR: Final = 5
_STA_UNSYNC: Final = 0x40
_OTHER_FIELDS_BYTES: Final = 256
"""More than the fields of the structure after `status`."""


class ClockSync(NamedTuple):
    """The kernel's state of the clock."""

    is_synchronised: bool
    estimated_error_us: int


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("others", ctypes.c_byte * _OTHER_FIELDS_BYTES),
    )


def read_clock_sync() -> ClockSync | None:
    """Return the state of the clock; None where the kernel does not report it."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None
    # With modes 0 the call only reads.
    state = _Timex()
    returned = adjtimex(ctypes.byref(state))
    if returned < 0:
        return None
    return ClockSync(returned != _TIME_ERROR and not state.status & _STA_UNSYNC, state.esterror)
