# SPDX-License-Identifier: Apache-2.0
"""F4: a process dies at any statement of a claim, a confirmation, a report and a sweep.

Real processes and kill -9: before each statement, and between COMMIT and its
answer.  Afterwards nothing is promised twice; whoever was not answered asks
again and gets what an undisturbed run gives; and what nobody asks for again is
free after the lease, a sweep and a report.  Leases are over when they begin,
so that nothing has to be waited for.
"""

import pytest

from gantt.core.claims.commit import CommitStatus
from tests.builders import (
    CLEAN,
    a_decision,
    a_draft,
    a_host,
    claimed,
    commit,
    live,
    new_uuid,
    uuid_of,
)
from tests.nemesis.deaths import at_answers, at_statements, every_death, left_alone

pytestmark = [pytest.mark.rabbit, pytest.mark.timeout(120)]
GROUP = new_uuid()


class Scene:
    """Hosts and claims before something is done to them in a process that may die.

    :ivar verb: what it does, with ``arguments``
    :ivar again: what somebody does who was not answered
    :ivar wanted: consumers with a claim after that
    """

    def __init__(self, site, number):
        self.store, name = site.store, new_uuid()[:8]
        self.hosts = [
            a_host(f'{name}-{n}').with_room(vcpu=8, CUSTOM_GOLD=4).on(self.store) for n in range(2)
        ]
        self.wanted = set()
        self.prepare(*self.hosts)

    def kept(self, lived=False):
        """Promises at any moment."""
        assert self.store.claims.audit() == CLEAN

    def repeated(self):
        """Asked again, it is as if nothing had happened."""
        self.again()
        assert {claim.consumer for claim in live(self.store)} == self.wanted
        self.kept()

    def free_in_the_end(self):
        """Nobody comes back; the hosts run nothing.  Usage is held against claims by ``kept``."""
        self.store.claims.sweep(100)
        for host in self.hosts:
            assert host.report().outcome == 'applied'
        assert live(self.store) == []
        self.kept()


class Claiming(Scene):
    """A batch of two requests: over two hosts and with a rule, and with a decision."""

    verb = 'requests.commit'

    def prepare(self, host, other_host):
        drafts = [
            a_draft()
            .planned_at(0, uuid_of(host.name))
            .taking(host, vcpu=2)
            .taking(other_host, vcpu=2),
            a_draft(decision=a_decision(host_set=host.name)).taking(host, CUSTOM_GOLD=1),
        ]
        drafts = [draft.leased(-5).whole() for draft in drafts]
        self.arguments = ([draft.build() for draft in drafts],)
        self.drafts = [draft.by('worker-2') for draft in drafts]
        self.wanted = {
            claim.claim.consumer for draft in self.arguments[0] for claim in draft.claims
        }

    def again(self):
        outcomes = {outcome.outcome for outcome in commit(self.store, *self.drafts).outcomes}
        assert outcomes in ({CommitStatus.PLACED}, {CommitStatus.REPEAT}), (
            'both of the batch, or none'
        )


class Confirming(Scene):
    verb = 'claims.confirm_claims'

    def prepare(self, host, other_host):
        self.claims = claimed(self.store, a_draft().leased(-5).taking(host).taking(host))
        self.arguments = (host.words(*self.claims),)
        self.wanted = {claim.consumer for claim in self.claims}

    def again(self):
        assert {outcome.outcome for outcome in self.hosts[0].confirm(*self.claims)} == {'ok'}
        self.store.claims.sweep(100)


class Reporting(Scene):
    """A guest is gone, one runs, one is being built, and one is unknown."""

    verb = 'reports.apply_reports'

    def prepare(self, host, other_host):
        draft = a_draft().leased(-5).taking(host).taking(host).taking(host)
        gone, runs, builds = claimed(self.store, draft)
        host.confirm(gone)
        stranger = new_uuid()
        report = host.says().with_room(vcpu=16, ram=1024, VGPU=2)
        self.arguments = ([report.listing([runs, stranger], [builds]).build()],)
        self.wanted = {runs.consumer, builds.consumer, stranger}

    def again(self):
        outcome = self.store.reports.apply_reports(*self.arguments).outcomes[0].outcome
        assert outcome in ('applied', 'stale'), outcome


class Sweeping(Scene):
    verb = 'claims.sweep'
    arguments = (100,)

    def prepare(self, host, other_host):
        confirmed, *_ = claimed(
            self.store, a_draft().leased(-5).taking(host).taking(host).taking(other_host)
        )
        host.confirm(confirmed)
        self.wanted = {confirmed.consumer}

    def again(self):
        self.store.claims.sweep(100)


SCENES = (Claiming, Confirming, Reporting, Sweeping)


@pytest.fixture(
    scope='module',
    params=[
        pytest.param('postgresql', marks=pytest.mark.postgresql),
        pytest.param('mysql', marks=[pytest.mark.mysql, pytest.mark.slow]),  # nightly: minutes
    ],
)
def site(request, a_site):
    new_site = a_site(request.param)
    new_site.store.vocabulary.declare_class('CUSTOM_GOLD')
    yield new_site
    new_site.audit()
    new_site.close()


@pytest.mark.parametrize('scene', SCENES)
def test_killed_before_every_other_statement(site, scene):
    """Every other time somebody asks again."""
    assert every_death(site, scene, at_statements(site), (scene.repeated, left_alone), 2) >= 3


@pytest.mark.slow
@pytest.mark.parametrize('ending', [Scene.repeated, left_alone])
@pytest.mark.parametrize('scene', SCENES)
def test_killed_before_every_statement(site, scene, ending):
    assert every_death(site, scene, at_statements(site), (ending,)) >= 5


@pytest.mark.parametrize('scene', SCENES)
def test_killed_between_commit_and_its_answer(site, scene, closing):
    life = at_answers(site, closing)
    assert every_death(site, scene, life, (scene.repeated, left_alone)) >= 1
