# SPDX-License-Identifier: Apache-2.0
"""What is kept of a guest's image beside its claim: its properties, as one text.

Equal images have equal texts, so that thousands of guests share a few of them.
"""

import functools
import sys

import msgspec

from gantt.core.messages.request import Image

#: Bytes of properties kept with a claim; what is beyond them, by name, is not.
STORED_MAX = 2048

_decode = msgspec.json.Decoder(dict[str, str]).decode


def stored(image: Image) -> dict[str, str]:
    """The properties that are kept, by name; not to be edited."""
    return _stored(tuple(image.properties.items()))[0]


@functools.lru_cache(maxsize=1024)
def _stored(properties: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], str]:
    """Those that are kept, by name and as text."""
    found, left = {}, STORED_MAX - 2
    for name, value in sorted(properties):
        # Halves of characters have no bytes.
        as_bytes = [text.encode('utf-8', 'replace') for text in (name, value)]
        left -= sum(map(len, as_bytes)) + 6
        if left < 0:
            break
        found[as_bytes[0].decode()] = as_bytes[1].decode()
    return found, sys.intern(msgspec.json.encode(found).decode()) if found else ''


def text_of(image: Image) -> str | None:
    """The properties as one text; None: there are none."""
    return _stored(tuple(image.properties.items()))[1] or None if image.properties else None


@functools.lru_cache(maxsize=1024)
def read(text: str) -> dict[str, str]:
    """The properties in a text; not to be edited.  What is no such text has none."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return {}
