# SPDX-License-Identifier: Apache-2.0
"""Quoting of foreign text for log lines, errors and terminals: cut, and in one line.

JSON for programs stays exact; only text for people is quoted.
"""

from typing import Any

#: Most characters of a foreign text that an error or a log line repeats.
QUOTED_CHARACTERS_MAX = 60
#: Most characters of a foreign sentence, such as a refusal of a library.
SENTENCE_CHARACTERS_MAX = 300

#: Line and paragraph separators, and characters that turn the direction of writing: a
#: terminal obeys them as it obeys control characters.
_CONTROL_CHARACTERS = frozenset(
    [
        *map(chr, range(0x20)),
        *map(chr, range(0x7F, 0xA0)),
        '\u061c',
        '\u200e',
        '\u200f',
        '\u2028',
        '\u2029',
        *map(chr, range(0x202A, 0x202F)),
        *map(chr, range(0x2066, 0x206A)),
        '\ufeff',
        *map(chr, range(0xFFF9, 0xFFFC)),
    ]
)
_ESCAPED = {ord(c): c.encode('unicode_escape').decode() for c in _CONTROL_CHARACTERS}


def quoted(value: Any, most: int = QUOTED_CHARACTERS_MAX) -> str:
    """Return a foreign value as Python writes it: quoted, escaped, cut to ``most`` characters."""
    # A long text is cut first: its whole representation would only be cut afterwards.
    text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= most else f'{text[: most - 3]}...'


def plain_text(text: str, most: int | None = None) -> str:
    """Return a foreign text without quotes, and with nothing that a terminal would obey.

    :param most: characters; a longer text is cut
    """
    cut = text if most is None or len(text) <= most else f'{text[: most - 3]}...'
    # A lone surrogate is no character: it cannot be written at all.
    return cut.translate(_ESCAPED).encode('utf-8', 'backslashreplace').decode()
