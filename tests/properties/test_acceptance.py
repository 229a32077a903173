# SPDX-License-Identifier: Apache-2.0
"""What a batch may write is what counting all of it anew for each claim says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.claims.acceptance import ProviderState, accepted_claims
from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import ClaimColumns, ClaimDraft, RequestDraft
from gantt.core.messages.request import Lifecycle
from gantt.core.messages.resource_classes import Inventory
from tests.thorough import examples

CLASSES = ('VCPU', 'CUSTOM_X')
PROVIDERS = (1, 2, 3)
MISSING = 4

amounts = st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 7), min_size=1)
shares = st.dictionaries(st.sampled_from([*PROVIDERS, MISSING]), amounts, min_size=1, max_size=2)


@st.composite
def inventories(draw):
    least = draw(st.integers(1, 3))
    return Inventory(
        total=draw(st.integers(0, 9)),
        min_unit=least,
        max_unit=draw(st.none() | st.integers(least, 9)),
        step_size=draw(st.sampled_from([1, 1, 2, 3])),
        allocation_ratio=draw(st.sampled_from([1.0, 2.0])),
    )


@st.composite
def batches(draw):
    """Providers with what is taken of them, requests, and claims that give way to theirs."""
    held = {}
    for pid in PROVIDERS:
        has = draw(st.dictionaries(st.sampled_from(CLASSES), inventories()))
        taken = {name: draw(st.integers(0, 12)) for name in CLASSES}
        held[pid] = has, taken, draw(st.sampled_from(['', '', '', 'is disabled']))
    requests, rivals = [], {}
    for number in range(draw(st.integers(1, 4))):
        drafts = []
        for member in range(draw(st.integers(1, 3))):
            claim = Claim(
                id=f'{number}.{member}',
                request_id=str(number),
                consumer=f'{number}.{member}',
                provider_id=1,
                lifecycle=draw(st.sampled_from([Lifecycle.HOST, Lifecycle.PLAN, Lifecycle.API])),
                allocations=draw(shares),
            )
            drafts.append(ClaimDraft(claim=claim))
            if draw(st.integers(0, 2)) == 0:
                older = Claim(
                    id=f'older {claim.id}',
                    request_id='older',
                    consumer=claim.consumer,
                    provider_id=1,
                    allocations=draw(shares),
                )
                rivals[claim.id] = [older]
        request = RequestDraft(
            id=str(number),
            fingerprint='',
            owner='',
            whole=draw(st.booleans()),
            claims=ClaimColumns.of(drafts),
        )
        requests.append(request)
    return held, requests, rivals


def cap(inventory):
    return int((inventory.total - inventory.reserved) * inventory.allocation_ratio)


def sums(claims, pid, name):
    return sum(claim.allocations.get(pid, {}).get(name, 0) for claim in claims)


def may_be(held, claim, written, gone, leaves):
    """One claim, everything counted anew."""
    is_api = claim.lifecycle is Lifecycle.API
    for pid, of in claim.allocations.items():
        if pid not in held:
            return False
        has, taken, closed = held[pid]
        if closed and not is_api:
            return False
        for name, amount in of.items():
            if amount == 0:
                continue
            if name not in has:
                return False
            free = cap(has[name]) - taken[name] - sums(written, pid, name) + sums(gone, pid, name)
            grows = amount - (sums(leaves, pid, name) if is_api else 0)
            if grows > 0 and grows > free:
                return False
            inventory = has[name]
            most = inventory.total if inventory.max_unit is None else inventory.max_unit
            if amount < inventory.min_unit or amount > most or amount % inventory.step_size:
                return False
    return True


def by_hand(held, requests, rivals):
    written, gone, accepted = [], [], {}
    for request in requests:
        took, makes, frees = [], [], []
        for i, draft in enumerate(request.claims):
            claim = draft.claim
            leaves = rivals.get(claim.id, [])
            if may_be(held, claim, written + makes, gone + frees, leaves):
                took.append(i)
                makes.append(claim)
                frees += leaves if claim.lifecycle is Lifecycle.API else []
        if request.whole and len(took) < len(request.claims):
            took, makes, frees = [], [], []
        written, gone = written + makes, gone + frees
        accepted[request.id] = took
    return accepted


@settings(max_examples=examples(300), deadline=None)
@given(batches())
def test_a_batch_is_accepted_as_counting_by_hand_says(batch):
    held, requests, rivals = batch
    states = {
        pid: ProviderState(
            name=f'provider {pid}',
            generation=1,
            inventories=has,
            room={n: (cap(has[n]) if n in has else 0) - taken[n] for n in CLASSES},
            closed=closed,
        )
        for pid, (has, taken, closed) in held.items()
    }
    verdicts = accepted_claims(states, requests, rivals)
    assert {k: verdict.accepted for k, verdict in verdicts.items()} == by_hand(
        held, requests, rivals
    )
    for request in requests:
        verdict = verdicts[request.id]
        assert (verdict.refusal is None) == (len(verdict.accepted) == len(request.claims))
