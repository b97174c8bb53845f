"""Text that came from outside, made safe to show."""

from __future__ import annotations

import re
from itertools import groupby

from grader.base.result import clean_text

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")
PRINTED_LINES = 40
PRINTED_CHARACTERS = 2000


def plain(text: str) -> str:
    """Return `text` without colours and control characters; every line ends with a newline."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return clean_text(text)


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, as in "four gates"."""
    word = _NUMBERS[number] if number < len(_NUMBERS) else str(number)
    return f"{word} {noun}" if number == 1 else f"{word} {noun}s"


def all_of(number: int, noun: str) -> str:
    """Return words for all of so many: "all four gates", "both gates", "the gate"."""
    if number == 1:
        return f"the {noun}"
    return f"both {noun}s" if number == 2 else f"all {counted(number, noun)}"


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
