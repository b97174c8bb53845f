"""Frames between referee and worker: a length-prefixed JSON header and a safetensors payload.

Nothing here unpickles and nothing here imports torch: tensors travel as NumPy arrays, and the
worker turns them into torch tensors itself. A frame that breaks a rule raises `ProtocolError`.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy

MOST_DIGITS, TOO_LONG = 18, 4000
PREFIX = struct.Struct("<II")
MAX_HEADER = 1 << 20
CHUNK = 1 << 20
NUMPY_KINDS = "biuf"


class ProtocolError(Exception):
    """A frame that breaks the rules; the message says which."""


class Closed(Exception):
    """The other side closed the connection before a whole frame arrived."""


class DeadlinePassed(Exception):
    """No whole frame arrived before the deadline on this side's clock."""


def _reject_constant(name: str) -> float:
    raise ProtocolError(f"the header holds {name}, which is not allowed")


def _all_whole(values: list[Any] | tuple[Any, ...]) -> bool:
    """Tell whether all are plain integers, such as the ids of a batch, which need no encoding."""
    return all(type(value) is int for value in values)


def _encode(value: Any, tensors: dict[str, np.ndarray]) -> Any:
    """Replace arrays by references into `tensors` and non-finite floats by their names."""
    if isinstance(value, np.ndarray):
        key = str(len(tensors))
        tensors[key] = value if value.flags.c_contiguous else value.copy(order="C")
        return {"$tensor": key}
    if isinstance(value, dict):
        return {str(k): _encode(v, tensors) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return value if _all_whole(value) else [_encode(v, tensors) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return _encode(value.item(), tensors)
    raise TypeError(f"a frame cannot hold {type(value).__name__}")


def _decode(value: Any, tensors: dict[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return value if _all_whole(value) else [_decode(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$tensor"}:
        if value["$tensor"] not in tensors:
            raise ProtocolError("the header names a tensor that the payload lacks")
        return tensors[value["$tensor"]]
    if set(value) == {"$float"}:
        return float(value["$float"])
    return {k: _decode(v, tensors) for k, v in value.items()}


def _bounded(digits: str) -> int | float:
    """Read a whole number; a very large one becomes a float, possibly infinite."""
    if len(digits) > TOO_LONG:
        raise ProtocolError(f"the header holds a number of {len(digits)} digits")
    return int(digits) if len(digits) < MOST_DIGITS else float(digits)


def pack(message: Any) -> bytes:
    """Turn a tree of plain values and arrays into one frame."""
    tensors: dict[str, np.ndarray] = {}
    header = json.dumps(_encode(message, tensors), allow_nan=False).encode()
    payload = safetensors.numpy.save(tensors) if tensors else b""
    return PREFIX.pack(len(header), len(payload)) + header + payload


def unpack(header: bytes, payload: bytes) -> Any:
    """Turn the two parts of a frame back into the tree.

    Raises:
        ProtocolError: `pack` cannot have written it.
    """
    try:
        tree = json.loads(header, parse_constant=_reject_constant, parse_int=_bounded)
        tensors = safetensors.numpy.load(payload) if payload else {}
        for array in tensors.values():
            if array.dtype.kind not in NUMPY_KINDS:
                raise ProtocolError(f"a tensor has the dtype {array.dtype}")
        return _decode(tree, tensors)
    except ProtocolError:
        raise
    except RecursionError:
        raise ProtocolError("the header is nested too deeply") from None
    except Exception as error:  # the payload is hostile input: the sender caused any failure
        raise ProtocolError(f"the frame cannot be read ({type(error).__name__})") from None


class Channel:
    """One end of a private connection that sends and receives whole frames."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over `connection`."""
        self.connection = connection
        self.arrived = bytearray()
        connection.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor, so that `select` can wait on the channel."""
        return self.connection.fileno()

    def close(self) -> None:
        """Close this end."""
        self.connection.close()

    def send(self, message: Any, deadline: float = math.inf) -> None:
        """Send one frame before `deadline` (seconds of `time.monotonic`)."""
        data = memoryview(pack(message))
        while data:
            self._wait(deadline, write=True)
            try:
                data = data[self.connection.send(data[:CHUNK]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Closed from None

    def _take(self, size: int) -> None:
        """Read up to `size` bytes that have arrived."""
        try:
            part = self.connection.recv(size)
        except BlockingIOError:
            return
        except OSError:
            raise Closed from None
        if not part:
            raise Closed
        self.arrived += part

    def receive(
        self,
        max_payload: int,
        deadline: float = math.inf,
        watch: Callable[[], None] | None = None,
    ) -> Any:
        """Return the next frame's tree.

        Args:
            max_payload: largest payload accepted, in bytes.
            deadline: seconds of `time.monotonic`.
            watch: called about ten times a second while waiting; may raise to give up.
        """
        head, body = PREFIX.unpack(self._read(PREFIX.size, deadline, watch))
        if head > MAX_HEADER or body > max_payload:
            raise ProtocolError(
                f"a frame of {head} + {body} bytes came where at most "
                f"{MAX_HEADER} + {max_payload} were expected"
            )
        header = self._read(head, deadline, watch)
        return unpack(header, self._read(body, deadline, watch))

    def _read(self, size: int, deadline: float, watch: Callable[[], None] | None) -> bytes:
        while len(self.arrived) < size:
            self._wait(deadline, watch=watch)
            self._take(min(CHUNK, size - len(self.arrived)))
        data = bytes(self.arrived[:size])
        del self.arrived[:size]
        return data

    def _wait(
        self, deadline: float, *, write: bool = False, watch: Callable[[], None] | None = None
    ) -> None:
        """Wait until the connection can be read, or written."""
        me = [self.connection]
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlinePassed
            pause = min(left, 0.1 if watch else 1.0)
            if any(select.select([] if write else me, me if write else [], [], pause)):
                return
            if watch:
                watch()
