# SPDX-License-Identifier: Apache-2.0
"""Amounts that claims inherit, as stored in rows of ``allocations``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

_decode = msgspec.json.Decoder(dict[str, int]).decode
Decode = Callable[[str], dict[str, int]]


def text_of(amounts: Mapping[str, int] | None) -> str | None:
    """Return class -> amount as JSON; None for none."""
    return msgspec.json.encode(amounts).decode() if amounts else None


def of_text(text: str) -> dict[str, int]:
    """Return class -> amount, from JSON."""
    return _decode(text)


def of_rows(rows: Sequence[Any], decode: Decode = _decode) -> dict[int, dict[str, int]]:
    """Return provider id -> class -> amount, from the rows of one claim."""
    pairs = ((row.beside_provider_id, row.beside_inherits) for row in rows)
    return {pid: decode(text) for pid, text in pairs if text is not None}
