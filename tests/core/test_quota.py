# SPDX-License-Identifier: Apache-2.0
"""The rule of quotas, and its bucket of tokens."""

import hypothesis
import hypothesis.strategies as st

from gantt.core.claims import quota
from gantt.core.claims.claim import Claim, State
from gantt.core.claims.quota import Limit, Limits, TokenBucket, Usage
from gantt.core.messages.request import Purpose

NAMES = ['claims_in_flight', 'live_claims', 'class:VCPU', 'class:MEMORY_MB']
amounts = st.dictionaries(st.sampled_from(['VCPU', 'MEMORY_MB', 'DISK_GB']), st.integers(1, 50))
claims = st.lists(
    st.builds(
        Claim,
        id=st.uuids().map(str),
        request_id=st.none(),
        consumer=st.sampled_from(['a', 'b', 'c', 'd']),
        provider_id=st.just(1),
        state=st.sampled_from(State),
        purpose=st.sampled_from(Purpose),
        allocations=st.dictionaries(st.integers(1, 3), amounts, max_size=2),
    ),
    max_size=8,
)
limits = st.dictionaries(st.sampled_from(NAMES), st.integers(-1, 200))
consumers = st.lists(st.sampled_from(['a', 'b', 'x', 'y', 'z']), unique=True, min_size=1)


def with_claims(before: list[Claim], asking: list[str], each: dict[str, int]) -> list[Claim]:
    """Return the claims after a request was let in and committed."""
    return [
        *before,
        *(
            Claim(id=f'new-{c}', request_id='r', consumer=c, provider_id=2, allocations={2: each})
            for c in asking
        ),
    ]


@hypothesis.given(before=claims, asking=consumers, each=amounts, bound=limits)
def test_what_is_let_in_passes_no_limit_that_it_adds_to(before, asking, each, bound) -> None:
    """The usage after is that of the rule's sum, and over a limit only where it was before."""
    used = quota.usage_of(before)
    held = [claim for claim in before if claim.is_live and claim.consumer in asking]
    added = quota.requested_usage(each, asking, held)
    after = quota.usage_of(with_claims(before, asking, each))
    assert after.claims_in_flight == used.claims_in_flight + added.claims_in_flight
    assert after.live_claims == used.live_claims + added.live_claims
    for name in ('VCPU', 'MEMORY_MB', 'DISK_GB'):
        now = used.amounts.get(name, 0) + added.amounts.get(name, 0)
        assert after.amounts.get(name, 0) == now
    over = quota.first_excess(bound, used, added)
    passed = [
        name
        for name, limit in bound.items()
        if limit != -1 and after.of(name) > limit and after.of(name) > used.of(name)
    ]
    assert (over is None) == (not passed)
    if over is not None:
        assert over.name in passed
        assert (
            over.line
            == f'quota {over.name}: {over.used} of {over.limit} used, {over.requested} requested'
        )
        assert over.used + over.requested == after.of(over.name) > over.limit == bound[over.name]


@hypothesis.given(
    options=limits, default=limits, own=limits, other=limits, name=st.sampled_from(NAMES)
)
def test_the_limit_of_the_project_goes_before_the_default_and_that_before_the_options(
    options, default, own, other, name
) -> None:
    stored = [
        Limit(project_id=project, name=class_name, limit=limit)
        for project, bounds in (('default', default), ('red', own), ('blue', other))
        for class_name, limit in bounds.items()
    ]
    all_limits = Limits(stored, options)
    first = next((of[name] for of in (own, default, options) if name in of), -1)
    assert all_limits.of('red', True).get(name, -1) == first
    assert all_limits.of('red', False).get(name, -1) == own.get(name, -1)
    assert all_limits.of(None, True) == {}
    assert all_limits.shown('red').get(name, (-1, ''))[0] == first


@hypothesis.given(
    limit=st.integers(0, 100),
    pauses=st.lists(st.floats(0, 30), max_size=60),
)
def test_no_minute_has_more_requests_than_twice_the_limit(limit, pauses) -> None:
    """Let in a caller that waits as long as stated."""
    bucket, now, let_in = TokenBucket(limit, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        refused = bucket.take(limit, now)
        if refused is None:
            let_in.append(now)
        elif limit:
            assert refused.retry_after_ms is not None
            now += refused.retry_after_ms / 1000 + 0.001
            assert bucket.take(limit, now) is None
            let_in.append(now)
    for begin in let_in:
        assert sum(begin <= at < begin + 60 for at in let_in) <= 2 * limit


def test_a_limit_that_is_raised_holds_at_once() -> None:
    bucket = TokenBucket(1, 0.0)
    assert bucket.take(1, 0.0) is None
    assert bucket.take(1, 0.0) is not None
    assert bucket.take(3, 0.0) is None
    assert bucket.take(0, 0.0) is not None


def test_who_asks_for_nothing_of_a_kind_is_not_refused_for_it() -> None:
    used = Usage(live_claims=9, amounts={'VCPU': 90})
    added = Usage(claims_in_flight=1, amounts={'VCPU': 0})
    assert quota.first_excess({'live_claims': 1, 'class:VCPU': 1}, used, added) is None
