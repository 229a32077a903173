# SPDX-License-Identifier: Apache-2.0
"""Unique keys of reserved claims: the column ``sole`` of claims."""

from gantt.core.claims.claim import Claim, State
from gantt.core.messages.request import Lifecycle, Purpose


def sole_of(claim: Claim) -> str | None:
    """Return the key that no other claim may have while this one is reserved; None: not reserved.

    Two requests that claim for one consumer conflict there; other conflicts of the consumer are
    checked afterwards, see ``core.claims.commit.judge_rivals``.
    """
    if claim.state is not State.RESERVED or claim.lifecycle is Lifecycle.API:
        return None
    return claim.consumer + sole_end(claim.purpose)


def sole_end(purpose: Purpose) -> str:
    """Return the suffix of the consumer in ``sole``."""
    if purpose is Purpose.CREATE:
        return ''
    return ' move' if purpose.is_move else f' {purpose.value}'


def is_of_sole(error: BaseException) -> bool:
    """Return whether a driver's error is a conflict in ``sole``."""
    return any(name in str(error) for name in ('ix_claims_sole', 'claims.sole'))
