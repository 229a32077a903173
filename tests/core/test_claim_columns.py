# SPDX-License-Identifier: Apache-2.0
"""Claims as columns are the claims that they were made of."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gantt.core.claims.commit import ClaimColumns, ClaimDraft
from gantt.core.messages.layout import layout_with_amounts
from gantt.core.resources.host import Placed
from gantt.scheduler import table_log
from tests.builders import a_draft, new_uuid

KINDS = st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=4)


def like(draft: ClaimDraft, member: int, provider: int) -> ClaimDraft:
    claim = draft.claim
    amounts = claim.allocations[claim.provider_id]
    fields = {'id': new_uuid(), 'member': member, 'consumer': new_uuid(), 'host': f'h{provider}'}
    allocations = {provider: amounts}
    return replace(
        draft, claim=replace(claim, **fields, provider_id=provider, allocations=allocations)
    )


@given(KINDS)
def test_columns_are_the_drafts_that_were_added(kinds):
    base = a_draft().taking(7, vcpu=2).fields['claims'][0]
    drafts, columns = [], ClaimColumns()
    for size, has_layout, has_group in kinds:
        first = like(base, len(drafts), 10 + len(drafts))
        if has_layout:
            first = replace(first, claim=replace(first.claim, layout={'cells': []}), generation=3)
        if has_group:
            first = replace(first, claim=replace(first.claim, group=new_uuid()))
        drafts.append(first)
        columns.add(first)
        for _ in range(size - 1):
            added = like(first, len(drafts), 10 + len(drafts))
            drafts.append(added)
            claim = added.claim
            columns.add_like(claim.id, claim.member, claim.consumer, claim.provider_id, claim.host)
    assert list(columns) == drafts == list(ClaimColumns.of(drafts))
    assert columns == ClaimColumns.of(drafts) and ClaimColumns.of(columns) is columns
    assert columns[-1] == drafts[-1] and columns[1:] == drafts[1:]
    odd = range(0, len(drafts), 2)
    assert columns.provider_ids() == {d.claim.provider_id for d in drafts}
    assert columns.provider_ids(odd) == {drafts[i].claim.provider_id for i in odd}
    table = Taken()
    table_log.picks_added(columns).apply(table)
    assert table.picks == {d.claim.id: pick_of(d.claim) for d in drafts}
    table_log.picks_removed(columns, odd).apply(table)
    assert table.picks == {drafts[i].claim.id: pick_of(drafts[i].claim) for i in odd}


class Taken:
    """The picks on a table."""

    def __init__(self) -> None:
        self.picks = {}

    def add_pick(self, provider_id, amounts, placed, shares):
        assert placed.provider_id == provider_id
        self.picks[placed.claim_id] = amounts, placed, shares

    def remove_pick(self, provider_id, amounts, claim_id):
        _, placed, _ = self.picks.pop(claim_id)
        assert placed.provider_id == provider_id


def pick_of(claim) -> tuple:
    layout = None if claim.layout is None else layout_with_amounts(claim.layout)
    ids = (claim.id, claim.consumer, claim.provider_id)
    placed = Placed(*ids, claim.group, layout, claim.image, claim.flavor)
    return claim.allocations[claim.provider_id], placed, {}


def test_what_takes_from_several_providers_touches_them_all():
    base = a_draft().taking(7).fields['claims'][0]
    wide = replace(base, claim=replace(base.claim, allocations={**base.claim.allocations, 99: {}}))
    columns = ClaimColumns.of([base, wide])
    assert columns.provider_ids([0]) == {base.claim.provider_id}
    assert columns.provider_ids([1]) == columns.provider_ids() == {base.claim.provider_id, 99}
