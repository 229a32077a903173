# SPDX-License-Identifier: Apache-2.0
"""What no two reserved claims may have: the column ``sole`` of claims."""

from gantt.core.claims.claim import Claim, State
from gantt.core.messages.request import Lifecycle, Purpose


def sole_of(claim: Claim) -> str | None:
    """What no other claim may have while this one is reserved; None: it is not.

    Two requests that claim for one consumer meet there; whom else it may not live beside is
    looked at afterwards, see ``core.claims.commit.judge_rivals``.
    """
    if claim.state is not State.RESERVED or claim.lifecycle is Lifecycle.API:
        return None
    return claim.consumer + sole_end(claim.purpose)


def sole_end(purpose: Purpose) -> str:
    """What stands behind the consumer in ``sole``."""
    if purpose is Purpose.CREATE:
        return ''
    return ' move' if purpose.is_move else f' {purpose.value}'


def is_of_sole(error: BaseException) -> bool:
    """Whether a driver says that another claim has what is ``sole``."""
    return any(name in str(error) for name in ('ix_claims_sole', 'claims.sole'))
