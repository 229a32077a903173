# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage db contract``: claims in the narrow form, see ``gantt.db.claims.contract``."""

import sys
import time
from typing import Any

from gantt.db.claims.contract import ClaimsContract, ClaimsForm
from gantt.db.schema import claim_form
from gantt.db.stores import store

#: Between two lines that say how far it is.
SAY_SECONDS = 10.0
PRICE = (
    'after it the release before can not be put back: it neither starts nor reads what is written'
)


def contract(conf: Any) -> int:
    """Write claims in the narrow form, and move those there are; says the price without --yes."""
    connected = store.connect(conf)
    try:
        return _contract(ClaimsContract(connected), conf.command)
    finally:
        connected.close()


def _contract(step: ClaimsContract, command: Any) -> int:
    found = step.look()
    if found.form == claim_form.NARROW:
        print('all claims are in the narrow form already')
        return 0
    if not command.yes:
        print(f'{describe(found)}. Run it with --yes: {PRICE}', file=sys.stderr)
        return 1
    step.mark()
    moved, shown = 0, time.monotonic()
    began = shown
    while (count := _step(step)) != 0:
        moved += max(0, count)
        if time.monotonic() - shown > SAY_SECONDS:
            shown = time.monotonic()
            print(f'{moved} claims moved, {describe(step.look())}', file=sys.stderr, flush=True)
    print(f'{moved} claims moved in {time.monotonic() - began:.0f} s; all are narrow now')
    return 0


def _step(step: ClaimsContract) -> int:
    """Claims that were moved; -1: something else was done; 0: it is done."""
    count = step.move()
    if count:
        return count
    return -1 if step.forget_consumers() else 0


def describe(found: ClaimsForm) -> str:
    """Where the step is."""
    if found.form == claim_form.NARROW:
        return 'all claims are in the narrow form'
    if found.form == claim_form.WIDE:
        return 'claims are in the wide form'
    if found.moved is None:
        return 'all claims are in the narrow form, rows of consumers are still to be deleted'
    return f'claims are moved to the narrow form: about {_part(found.moved):.0%} are'


def _part(moved: str) -> float:
    """How much of all ids is not beyond one of them: they are evenly spread."""
    try:
        return int(moved[:8], 16) / 0xFFFFFFFF
    except ValueError:
        return 0.0
