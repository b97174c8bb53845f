"""Text that came from outside, made safe to show."""

from __future__ import annotations

import re
from itertools import groupby

from grader.base.result import clean_text

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")
PRINTED_LINES = 40
PRINTED_CHARACTERS = 2000


def plain(text: str) -> str:
    """Return `text` without colours, control characters and line ends other than a newline."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return clean_text(text)


def one_line(text: str) -> str:
    """Return `text` on one line, without control and direction marks."""
    return " ".join(plain(text).replace("\N{REPLACEMENT CHARACTER}", "").split())


def printed(text: str) -> str:
    """Return what student code printed, fit to show: cleaned, without addresses, and cut.

    A line that comes several times in a row stands once, with their number behind it.
    """
    lines = _ADDRESS.sub("0x...", plain(text)).rstrip().split("\n")
    counted = ((line, len(list(same))) for line, same in groupby(lines))
    found = [f"{line}  (x{count})" if count > 1 and line else line for line, count in counted]
    whole = "\n".join(found[:PRINTED_LINES])
    if len(found) > PRINTED_LINES or len(whole) > PRINTED_CHARACTERS:
        whole = f"{whole[:PRINTED_CHARACTERS].rstrip()}\n... (the rest is cut)"
    return whole
