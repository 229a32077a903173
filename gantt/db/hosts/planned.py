# SPDX-License-Identifier: Apache-2.0
"""The plan that a place returns to, as stored in rows of ``claims``."""

import msgspec

from gantt.core.claims.claim import PlannedFor

_decode = msgspec.json.Decoder(PlannedFor).decode


def of_text(text: str | None) -> PlannedFor | None:
    """Return it from JSON; None: no create has the claim as a place."""
    return None if text is None else _decode(text)
