# SPDX-License-Identifier: Apache-2.0
"""Ids as they can be stored."""


def is_id(text: str) -> bool:
    """Return whether an id can be stored at all: ids are ASCII, of bounded length."""
    return text.isascii() and 0 < len(text) <= 64 and '\x00' not in text
