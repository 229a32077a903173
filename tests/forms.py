# SPDX-License-Identifier: Apache-2.0
"""Databases whose claims are wide, or on their way to be narrow: see ``gantt.db.schema``."""

import sqlalchemy as sa

from gantt.db.claims.contract import ClaimsContract
from gantt.db.schema import claim_form, models
from gantt.db.stores.store import SqlStore


def set_form(engine: sa.Engine, form: str = '') -> None:
    """An empty database as it is before the contract step (``wide``), or as a new one is."""
    steps = models.schema_steps
    with engine.begin() as connection:
        wide = form == 'wide'
        number = claim_form.WIDE if wide else claim_form.NARROW
        connection.execute(models.meta.update().values(claims_form=number, claims_moved=None))
        connection.execute(steps.delete().where(steps.c.revision == claim_form.STEP))
        if not wide:
            connection.execute(steps.insert().values(revision=claim_form.STEP))


def contract_of(store: SqlStore) -> ClaimsContract:
    """The step on the database of a store."""
    return ClaimsContract(store)


def forms(store: SqlStore) -> dict[str, int]:
    """How many claims there are in each form, and how many rows beside them."""
    counted = {
        'narrow': sa.select(sa.func.count()).where(claim_form.is_narrow),
        'wide': sa.select(sa.func.count()).where(claim_form.is_wide),
        'allocations': sa.select(sa.func.count()).select_from(models.allocations),
        'consumers': sa.select(sa.func.count()).select_from(models.consumers),
    }
    with store.engine.connect() as connection:
        return {name: connection.execute(query).scalar_one() for name, query in counted.items()}


def move_all(store: SqlStore, most: int = 1000) -> None:
    """The whole step, a few rows at a time."""
    step = contract_of(store)
    step.mark()
    while step.move(most) or step.forget_consumers(most):
        pass
