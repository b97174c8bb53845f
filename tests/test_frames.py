"""Frames survive a round trip and refuse whatever `pack` would not write."""

import json
import math
import socket
import time

import numpy as np
import pytest

from grader.link import frames


@pytest.fixture
def ends():
    a, b = socket.socketpair()
    yield frames.Channel(a), frames.Channel(b)
    a.close()
    b.close()


def soon():
    return time.monotonic() + 5.0


def raw(header: bytes, payload: bytes = b"") -> bytes:
    return frames.PREFIX.pack(len(header), len(payload)) + header + payload


def test_frame_round_trip_keeps_values_and_arrays(ends):
    sender, receiver = ends
    tree = {
        "ids": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "mask": np.array([[True, False]]),
        "scalar": np.float64(2.5),
        "nested": [1, None, "x", {"inf": math.inf, "empty": np.zeros((0, 3))}],
        "lists": [[3, 4], (5,), [], [1, True], [6, np.int64(7)], [-math.inf, 8], [[9], [10, 11]]],
    }
    sender.send(tree, soon())
    got = receiver.receive(1 << 16, soon())
    np.testing.assert_array_equal(got["ids"], tree["ids"])
    assert got["mask"].dtype == bool
    assert got["scalar"] == 2.5
    assert got["nested"][:3] == [1, None, "x"]
    assert got["nested"][3]["inf"] == math.inf
    assert got["nested"][3]["empty"].shape == (0, 3)
    assert got["lists"] == [[3, 4], [5], [], [1, True], [6, 7], [-math.inf, 8], [[9], [10, 11]]]


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b'{"a": NaN}',
        b'{"a": {"$tensor": "0"}}',
        b"[" * 100_000,
        b'{"a": ' + b"1" * 5000 + b"}",
        b"\xff\xfe",
    ],
    ids=["text", "nan", "dangling", "deep", "long-number", "encoding"],
)
def test_malformed_header_is_a_protocol_error(ends, header):
    sender, receiver = ends
    sender.connection.setblocking(True)
    sender.connection.sendall(raw(header))
    with pytest.raises(frames.ProtocolError):
        receiver.receive(1 << 16, soon())


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00" * 4,
        (1 << 62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}" + b"tail",
        (60).to_bytes(8, "little")
        + json.dumps({"0": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}})
        .ljust(60)
        .encode(),
    ],
    ids=["short", "huge-header", "tail", "shape"],
)
def test_malformed_payload_is_a_protocol_error(ends, payload):
    sender, receiver = ends
    sender.connection.setblocking(True)
    sender.connection.sendall(raw(b"{}", payload))
    with pytest.raises(frames.ProtocolError):
        receiver.receive(1 << 16, soon())


def test_oversized_frame_is_refused_before_it_is_read(ends):
    sender, receiver = ends
    sender.connection.sendall(frames.PREFIX.pack(2, 1 << 30))
    with pytest.raises(frames.ProtocolError, match="at most"):
        receiver.receive(1 << 16, soon())


def test_slow_frame_misses_the_deadline(ends):
    sender, receiver = ends
    sender.connection.sendall(frames.PREFIX.pack(2, 0))
    with pytest.raises(frames.DeadlinePassed):
        receiver.receive(0, time.monotonic() + 0.05)


def test_closed_connection_is_told_apart(ends):
    sender, receiver = ends
    sender.close()
    with pytest.raises(frames.Closed):
        receiver.receive(0, soon())


def test_number_nobody_can_count_to_becomes_infinite():
    for digits, read in (
        ("9" * 17, 10**17 - 1),
        ("-" + "9" * 400, -math.inf),
    ):
        assert frames.unpack(digits.encode(), b"") == read
