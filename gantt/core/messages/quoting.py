# SPDX-License-Identifier: Apache-2.0
"""Text from outside, as it goes into log lines, errors and terminals: cut, and in one line.

What is shown to a program (JSON) stays exact; only what people read is quoted.
"""

from typing import Any

#: Characters of a foreign text that an error or a log line repeats.
CHARACTERS_MAX = 60
#: Of a sentence that was written elsewhere, such as a refusal of a library.
SENTENCE_MAX = 300

#: Line and paragraph separators, and characters that turn the direction of writing: a
#: terminal obeys them as it obeys control characters.
_OBEYED = frozenset(
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
_ESCAPED = {ord(c): c.encode('unicode_escape').decode() for c in _OBEYED}


def short(value: Any, most: int = CHARACTERS_MAX) -> str:
    """A foreign value as Python writes it: quoted, escaped, at most ``most`` characters."""
    # Of a long text the representation would be made whole only to be cut.
    text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= most else f'{text[: most - 3]}...'


def plain(text: str, most: int | None = None) -> str:
    """A foreign text without quotes: nothing in it that a terminal would obey.

    :param most: characters; what is longer is cut
    """
    cut = text if most is None or len(text) <= most else f'{text[: most - 3]}...'
    # Half a character is no character: it cannot be written at all.
    return cut.translate(_ESCAPED).encode('utf-8', 'backslashreplace').decode()
