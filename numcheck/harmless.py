"""Text from records made harmless: for a page, for a terminal, and for a runner of workflows that reads a job's log."""

from __future__ import annotations

import re
import unicodedata

# Longest text taken from a record: the longest honest ones (a replay line, an error's last frames) are far shorter.
LONGEST = 4000
# Controls, line separators, bidirectional overrides and lone surrogates: they could hide or reorder what is shown.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
# What GitHub's runner takes for a command: `::` after any blanks at a line's start, and the older `##[` anywhere.
_COMMAND = re.compile(r"^(\s*):(?=:)|##(?=\[)")
# Letters and a symbol, as Unicode has them, that leave no mark: Hangul fillers and the empty braille cell.
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"


def clean(text: str) -> str:
    """`text` with every invisible or reordering character written out, and cut where it is absurdly long."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text) - LONGEST} more characters)"
    return _HIDDEN.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def one_line(text: str) -> str:
    """`text` as one line of plain text, which no terminal and no runner of workflows takes for a command."""
    flat = clean(text.replace("\r\n", "\n")).replace("\n", " ").replace("\t", " ")
    return _COMMAND.sub(lambda match: f"{match.group(1) or ''}\\u003a" if ":" in match.group() else "#\\u0023", flat)


def visible(text: str) -> bool:
    """Whether any character of `text` leaves a mark: not blanks, controls, formats and combining marks alone."""
    return any(unicodedata.category(sign)[0] not in "CMZ" and sign not in _BLANK for sign in text)
