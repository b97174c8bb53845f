"""Text that came from outside, made safe to show."""

from __future__ import annotations

import re

from grader.base.result import clean_text

_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")


def plain(text: str) -> str:
    """Return `text` without colours and control characters; every line ends with a newline."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return clean_text(text)


def one_line(text: str) -> str:
    """Return `text` on one line, without control and direction marks."""
    return " ".join(plain(text).replace("\N{REPLACEMENT CHARACTER}", "").split())
