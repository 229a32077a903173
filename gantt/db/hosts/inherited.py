# SPDX-License-Identifier: Apache-2.0
"""What claims inherit, as it stands in rows of ``allocations``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

_decode = msgspec.json.Decoder(dict[str, int]).decode
Decode = Callable[[str], dict[str, int]]


def text_of(amounts: Mapping[str, int] | None) -> str | None:
    """Class -> amount as JSON; None where there is nothing."""
    return msgspec.json.encode(amounts).decode() if amounts else None


def of_text(text: str) -> dict[str, int]:
    """Class -> amount, from JSON."""
    return _decode(text)


def of_rows(rows: Sequence[Any], decode: Decode = _decode) -> dict[int, dict[str, int]]:
    """Provider id -> class -> amount, of the rows of one claim."""
    found = ((row.beside_provider_id, row.beside_inherits) for row in rows)
    return {pid: decode(text) for pid, text in found if text is not None}
