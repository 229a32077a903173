# SPDX-License-Identifier: Apache-2.0
"""The SQL store does what the plain one does, whatever is asked of them.

Both hear the same words, the world's surprises included: hosts shrink, guests
turn up that nobody claimed, operators end claims, workers die and are taken
over from.  After each word both have answered the same and hold the same rows.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.resources.group_rule import placements_since_first
from tests.builders import CLEAN, a_draft, a_guest, a_host, live, uuid_of
from tests.properties.claim_world import a_store

HOSTS = ('cmp-1', 'cmp-2')
GROUP = uuid_of('group')
SMALL = st.integers(0, 3)

WORDS = st.one_of(
    st.tuples(st.just('place'), SMALL, SMALL, st.booleans(), st.sampled_from([-1, 100])),
    st.tuples(st.just('open'), SMALL, SMALL, st.sampled_from([-1, 100])),
    st.tuples(st.just('go_on'), SMALL, SMALL),
    st.tuples(st.just('take_over'), SMALL, SMALL),
    st.tuples(st.just('in_group'), SMALL, SMALL),
    st.tuples(st.sampled_from(['again', 'cancel', 'give_up', 'extend']), SMALL),
    st.tuples(st.sampled_from(['confirm', 'refuse', 'release', 'force']), SMALL, st.booleans()),
    st.tuples(st.just('sweep'), SMALL),
    st.tuples(st.just('report'), SMALL, SMALL, st.sampled_from(['all', 'half', 'none', 'null'])),
    st.tuples(st.just('delta'), SMALL, SMALL),
    st.tuples(st.just('stranger'), SMALL, SMALL),
    st.tuples(st.just('room'), SMALL, st.integers(1, 9)),
    st.tuples(st.sampled_from(['disable', 'enable', 'register']), SMALL),
    st.tuples(st.just('aggregate'), SMALL, st.booleans()),
)


def some(amounts):
    """Amounts that are not nothing."""
    return {name: amount for name, amount in amounts.items() if amount}


class Side:
    """One store with its hosts, and everything that happens to it."""

    def __init__(self, store):
        self.store = store
        self.hosts = [
            a_host(name).with_room(vcpu=6, CUSTOM_X=3).on(store, uuid=uuid_of(name))
            for name in HOSTS
        ]
        self.drafts = []
        self.names = {host.id: host.name for host in self.hosts}

    def receive(self, word):
        verb, *arguments = word
        try:
            return getattr(self, verb)(*arguments)
        except exceptions.GanttError as e:
            return type(e).__name__

    def host(self, number):
        return self.hosts[number % len(self.hosts)]

    def draft(self, number):
        return self.drafts[-1 - number % len(self.drafts)] if self.drafts else None

    def told_of(self, claims):
        """Those that a host can have heard of: an open request was not answered yet."""
        heard = []
        for claim in sorted(claims, key=lambda c: c.id):
            stored = (
                self.store.requests.load_request(claim.request_id) if claim.request_id else None
            )
            if stored is None or stored.state != 'open':
                heard.append(claim)
        return heard

    def claim(self, number):
        claims = self.told_of(self.store.claims.list_claims(limit=1000))
        return claims[number * 7 % len(claims)] if claims else None

    def outcome(self, draft):
        result = self.store.requests.commit([draft.build()])
        fate = result.outcomes[0]
        hosts = self.store.feed.load_everything().hosts
        rows = {change.row.name: change.row.used for change in hosts}
        groups = {uuid: placements_since_first(number) for uuid, number in result.groups.items()}
        return fate.outcome, fate.accepted, fate.attempt, fate.answer, rows, groups

    def new(self, number, size):
        draft = a_draft(uuid_of('draft', len(self.drafts)))
        for i in range(1 + number % 2):
            more = {'CUSTOM_X': 1} if size % 2 else {}
            draft = draft.taking(self.host(number + i), vcpu=size + 1, **more)
        return draft

    # -- callers ----------------------------------------------------------------------
    def place(self, number, size, whole, lease):
        draft = self.new(number, size).having(whole=whole).leased(lease)
        self.drafts.append(draft)
        return self.outcome(draft)

    def open(self, number, size, budget):
        draft = self.new(number, size).unfinished().within(budget).leased(-1)
        self.drafts.append(draft)
        return self.outcome(draft)

    def go_on(self, number, size):
        draft = self.draft(number)
        if draft is None:
            return None
        count = len(draft.fields['claims'])
        rest = draft.continuing(count).taking(self.host(number), vcpu=size + 1)
        return self.outcome(rest.having(completes=True))

    def take_over(self, number, size):
        draft = self.draft(number)
        if draft is None:
            return None
        heir = a_draft(draft.id).by('worker-2').taking_over(1)
        return self.outcome(heir.taking(self.host(number), vcpu=size + 1))

    def in_group(self, number, size):
        group = self.store.groups.load_group(GROUP)
        generation = group.generation if group else 0
        draft = a_draft(uuid_of('draft', len(self.drafts)))
        at = max(0, generation - size // 3)
        draft = draft.planned_at(at, GROUP).taking(self.host(number), vcpu=1)
        self.drafts.append(draft)
        return self.outcome(draft)

    def again(self, number):
        draft = self.draft(number)
        return self.outcome(draft) if draft else None

    def cancel(self, number):
        draft = self.draft(number)
        if draft is None:
            return None
        result = self.store.requests.cancel_request(draft.id, 'test')
        return self.store.requests.load_request(draft.id).state, self.said(result.outcomes)

    def give_up(self, number):
        draft = self.draft(number)
        return (
            self.said(self.store.requests.give_up(draft.id, 'worker-1', 1).outcomes)
            if draft
            else None
        )

    def extend(self, number):
        draft = self.draft(number)
        return (
            self.said(self.store.requests.extend_request(draft.id, 50, 100).outcomes)
            if draft
            else None
        )

    @staticmethod
    def said(fates):
        return sorted((f.claim_id, f.outcome, f.state) for f in fates)

    # -- hosts ------------------------------------------------------------------------
    def _word(self, word, number, late):
        claim = self.claim(number)
        if claim is None:
            return None
        host = next(h for h in self.hosts if h.id == claim.provider_id)
        at = {'sequence': max(1, host.sequence - 1)} if late else {}
        return self.said(getattr(host, word)(claim, **at))

    def confirm(self, number, late):
        return self._word('confirm', number, late)

    def refuse(self, number, late):
        return self._word('refuse', number, late)

    def release(self, number, late):
        return self._word('release', number, late)

    def force(self, number, _):
        claim = self.claim(number)
        return self.said(self.store.claims.force_release(claim.id, 'x').outcomes) if claim else None

    def sweep(self, limit):
        # Which of several overdue claims go first is the clock's affair: take all.
        return self.said(self.store.claims.sweep(100).outcomes)

    def report(self, number, size, listing):
        host = self.host(number)
        mine = self.told_of(live(self.store, host=host.name))
        says = host.says()
        match listing:
            case 'all':
                says = says.listing(mine).outside(vcpu=size)
            case 'half':
                says = says.listing(mine[::2], mine[1::4]).using(vcpu=size * 3)
            case 'none':
                says = says.listing()
            case 'null':
                says = says.without_opinion().using(vcpu=size * 2, CUSTOM_X=size)
        return self.told(host.send(says))

    def delta(self, number, size):
        host = self.host(number)
        mine = self.told_of(live(self.store, host=host.name))
        report = host.says().since(host.row.full_sequence or 1).listing(mine)
        return self.told(host.send(report.having(traits=[f'CUSTOM_{size}']).outside(CUSTOM_X=size)))

    def stranger(self, number, size):
        host = self.host(number)
        mine = self.told_of(live(self.store, host=host.name))
        placed = {claim.consumer for claim in live(self.store)}
        ended = [
            claim
            for claim in self.store.claims.list_claims(host=host.name, limit=1000)
            if not claim.is_live and claim.consumer not in placed
        ][:1]
        guest = a_guest(uuid_of('stranger', host.name, size), vcpu=size)
        fates = host.send(host.says().listing([*mine, *ended, guest]))
        return [(f.outcome, f.changed, len(f.adopted), sorted(f.confirmed)) for f in fates]

    @staticmethod
    def told(fates):
        return [
            (f.outcome, f.changed, sorted(f.confirmed), sorted(f.released), len(f.adopted))
            for f in fates
        ]

    def room(self, number, vcpu):
        host = self.host(number)
        host.facts = host.facts.with_room(vcpu=vcpu, **({'CUSTOM_X': 2} if vcpu % 2 else {}))
        return self.report(number, 0, 'all')

    def register(self, number):
        host = self.host(number)
        host.register()
        mine = self.told_of(live(self.store, host=host.name))
        return self.told(host.send(host.says().listing(mine)))

    # -- operators ----------------------------------------------------------------------
    def disable(self, number):
        return self.store.hosts.disable_host(self.host(number).name, 'x', 'y').row.disabled

    def enable(self, number):
        return self.store.hosts.enable_host(self.host(number).name).row.disabled

    def aggregate(self, number, put):
        name = f'rack-{number % 2}'
        members = [self.host(number).name] if put else []
        saved = self.store.declarations.save_aggregate(
            name, {'n': str(number)}, members, uuid_of(name)
        )
        return saved.hosts, saved.metadata, saved.generation

    # -- everything --------------------------------------------------------------------
    def rows(self):
        """All that can be seen, without ids that a store hands out and without times."""
        everything = self.store.feed.load_everything()
        hosts = {}
        for change in everything.hosts:
            row = change.row
            facts = (row.facts, row.used, row.foreign, sorted(row.aggregates), row.over_committed)
            order = (row.epoch, row.sequence, row.full_sequence, row.disabled, row.service_disabled)
            consumers = sorted((p.consumer, p.group) for p in change.placed)
            hosts[row.name] = (facts, order, consumers)
        claims = sorted(
            (
                c.id,
                c.consumer,
                c.host,
                c.state,
                c.attempt,
                c.reason,
                c.adopted,
                c.group,
                [(self.names.get(p), some(a)) for p, a in sorted(c.allocations.items()) if some(a)],
            )
            for c in self.store.claims.list_claims(limit=1000)
        )
        requests = [
            (stored.state, stored.attempt, stored.answer, len(stored.claims)) if stored else None
            for stored in (self.store.requests.load_request(draft.id) for draft in self.drafts)
        ]
        group = self.store.groups.load_group(GROUP)
        members = (
            (placements_since_first(group.generation), sorted(group.members)) if group else None
        )
        return hosts, claims, requests, members


def sorted_lines(audit):
    return {kind: sorted(lines) for kind, lines in audit.items()}


def check(words):
    with a_store('memory') as plain, a_store('sqlite') as real:
        expected, actual = Side(plain), Side(real)
        base = [host.epoch for host in expected.hosts]
        assert [host.epoch for host in actual.hosts] == base
        for word in words:
            assert expected.receive(word) == actual.receive(word), word
            assert expected.rows() == actual.rows(), word
            audit = sorted_lines(plain.claims.audit())
            assert audit == sorted_lines(real.claims.audit()), word
            # A stranger may be asked for again elsewhere; nothing else may be found.
            assert {**audit, 'doubled': []} == CLEAN, word


# A failing list of words is short enough to read, and takes minutes to make shorter.
LENIENT = {
    'deadline': None,
    'print_blob': True,
    'suppress_health_check': list(HealthCheck),
    'phases': (Phase.explicit, Phase.reuse, Phase.generate),
}


@settings(max_examples=25, **LENIENT)
@given(st.lists(WORDS, min_size=5, max_size=25))
def test_both_stores_answer_and_hold_the_same(words):
    check(words)


@pytest.mark.slow
@settings(max_examples=400, **LENIENT)
@given(st.lists(WORDS, min_size=10, max_size=60))
def test_both_stores_answer_and_hold_the_same_for_long(words):
    check(words)
