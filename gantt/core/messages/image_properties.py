# SPDX-License-Identifier: Apache-2.0
"""Properties of a guest's image that are stored with its claim, as one text.

Equal images have equal texts, so that thousands of guests share a few of them.
"""

import functools
import sys

import msgspec

from gantt.core.messages.request import Image

#: Most bytes of properties stored with a claim; those beyond, by name, are not.
STORED_BYTES_MAX = 2048

_decode = msgspec.json.Decoder(dict[str, str]).decode


def stored_properties(image: Image) -> dict[str, str]:
    """Return the stored properties, by name; read-only."""
    return _stored(tuple(image.properties.items()))[0]


@functools.lru_cache(maxsize=1024)
def _stored(properties: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], str]:
    """Return the stored properties, by name and as text."""
    by_name, bytes_left = {}, STORED_BYTES_MAX - 2
    for name, value in sorted(properties):
        # Lone surrogates have no bytes.
        as_bytes = [text.encode('utf-8', 'replace') for text in (name, value)]
        bytes_left -= sum(map(len, as_bytes)) + 6
        if bytes_left < 0:
            break
        by_name[as_bytes[0].decode()] = as_bytes[1].decode()
    return by_name, sys.intern(msgspec.json.encode(by_name).decode()) if by_name else ''


def text_of(image: Image) -> str | None:
    """Return the properties as one text; None: there are none."""
    return _stored(tuple(image.properties.items()))[1] or None if image.properties else None


@functools.lru_cache(maxsize=1024)
def read(text: str) -> dict[str, str]:
    """Return the properties in a text; read-only.  Any other text has none."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return {}
