# SPDX-License-Identifier: Apache-2.0
"""A walk over every method of RPC: who calls there is a service, or the agent of one host.

A service may know of all hosts and all projects.  Where it says for which one project it asks, it
is told of no other one; an agent is told of no other host than its own.
"""

import random
import re
import uuid
from collections.abc import Iterator
from typing import Any

import oslo_messaging as om
import pytest

from gantt import plugin_loader
from gantt.groups.service.planner import GroupPlanner
from gantt.groups.service.settings import PlannerSettings
from gantt.rpc import wire
from gantt.scheduler.settings import SchedulerSettings
from tests.hostile.walked_site import BLUE, FIGURES, FIGURES_OF_BLUE, MARKS, RED, WalkedSite
from tests.rpc.bus import Bus

ONE, PROJECT, EVERYTHING = 'agent of one host', 'for one project', 'a service'
#: Method -> as whom it is called, and a body of it.
METHODS: dict[str, dict[str, tuple[str, str, dict[str, Any]]]] = {
    wire.SCHEDULER_TOPIC: {
        'select_destinations': (
            PROJECT,
            'request',
            {'request_id': 'request', 'consumers': ['consumer'], 'spec': 'spec'},
        ),
        # Conductors take back, confirm and look up what they asked for themselves.
        'get_request': (EVERYTHING, 'request', {'request_id': 'request'}),
        'cancel_claims': (EVERYTHING, 'request', {'request_id': 'request'}),
        'confirm_request': (EVERYTHING, 'request', {'request_id': 'request'}),
        'release_request': (EVERYTHING, 'request', {'request_id': 'request'}),
    },
    wire.PLANNER_TOPIC: {
        'place_group': (PROJECT, 'request', {'request_id': 'request', 'group': 'description'}),
        'change_group': (PROJECT, 'request', {'request_id': 'request', 'group': 'description'}),
        'show_group_plan': (PROJECT, 'request', {'group': 'plan', 'check': True}),
        'extend_group_plan': (PROJECT, 'request', {'group': 'plan', 'seconds': 60}),
        'release_group_plan': (PROJECT, 'request', {'group': 'plan'}),
    },
    wire.CLAIMS_TOPIC: {
        'register_host': (ONE, 'host', {'name': 'host', 'boot_nonce': 'hst-x3305'}),
        'confirm_claims': (ONE, 'update', {'claim_ids': ['claim'], 'name': 'host'}),
        'refuse_claims': (ONE, 'update', {'claim_ids': ['claim'], 'name': 'host'}),
        'release_claims': (ONE, 'update', {'claim_ids': ['claim'], 'name': 'host'}),
        # As the schedulers': who has a request extended has asked for it.
        'extend_claims': (EVERYTHING, 'request', {'request_id': 'request', 'seconds': 60}),
    },
    wire.STATS_TOPIC: {
        'update_resource_stats': (ONE, 'stats', {'name': 'host', 'full': True, 'running': []}),
        'sync_guests': (ONE, 'guest_list', {'host': 'host', 'requested_at': 1.0, 'guests': []}),
        'update_host_facts': (ONE, 'update', {'host': 'host', 'sequence': 1}),
        # One report source tells of the whole cloud, and asks for all of its open moves.
        'update_aggregates': (EVERYTHING, 'update', {'aggregates': []}),
        'update_server_groups': (EVERYTHING, 'update', {'groups': []}),
        'list_open_moves': (EVERYTHING, 'query', {'seconds': 0}),
        'update_guest_locations': (EVERYTHING, 'update', {'guests': []}),
    },
}
#: Nova's conductor is told hosts, and says for whom it asks: of its methods nobody else calls one.
OF_NOVA = 'scheduler'
CALLS = 12


class RpcWalk:
    """Callers of all methods, on a broker in the process."""

    def __init__(self, site: WalkedSite) -> None:
        self.site, self.dice = site, random.Random('walk over RPC')
        self.outcomes: set[tuple[str, str]] = set()
        self.planner = GroupPlanner(
            site.top.store,
            plugin_loader.load_pipeline(),
            site.top.recorder,
            SchedulerSettings(worker='planner'),
            PlannerSettings(plan_seconds=0.2),
        )
        self.planner.start()
        self.bus = Bus(facade=site.top.scheduler, planner=self.planner)
        self._clients = {topic: self.bus.raw(topic) for topic in METHODS}

    def close(self) -> None:
        self.bus.close()
        self.planner.stop(5.0)
        self.site.stop()

    def call(self, topic: str, method: str, whom: str, argument: str, form: Any) -> None:
        body = {key: self._filled(key, value) for key, value in form.items()}
        if whom == PROJECT:
            body['only_project'] = RED
            if 'request_id' in body and self.dice.randrange(4):
                body['request_id'] = str(uuid.UUID(int=self.dice.getrandbits(128)))
        if topic == wire.CLAIMS_TOPIC and argument == 'update':
            body |= {'epoch': self.dice.choice((1, 2)), 'sequence': self.dice.randrange(1, 2**40)}
        if method == 'update_resource_stats':
            body |= {'epoch': 1, 'sequence': self.dice.randrange(1, 2**40), 'pending': []}
        arguments = {argument: body}
        if method == 'update_resource_stats':
            arguments['name'] = body['name']
        try:
            answer = str(self._clients[topic].call({}, method, **arguments))
            outcome = 'answered'
        except om.RemoteError as e:
            answer, outcome = f'{e.exc_type} {e.value}', e.exc_type
        except Exception as e:  # one of ours, which the client knows
            answer, outcome = f'{type(e).__name__} {e} {vars(e)}', type(e).__name__
        self.outcomes.add((method, outcome))
        leaked = self.leaks(whom, answer, str(arguments))
        assert not leaked, (method, leaked, arguments, answer)

    def leaks(self, whom: str, answer: str, said: str) -> set[str]:
        """What of an answer is of another project, or another host, than the caller's."""
        leaked: set[str] = set()
        if whom == PROJECT:
            leaked |= set(MARKS[BLUE].findall(answer))
            leaked |= {identifier for identifier in self.site.ids[BLUE] if identifier in answer}
            leaked |= set(FIGURES_OF_BLUE.findall(answer))
        elif whom == ONE:
            leaked |= set(re.findall(r'hst-x33\d\d|x47\d\d|x22\d\d', answer))
            leaked |= set(FIGURES.findall(answer)) | set(FIGURES_OF_BLUE.findall(answer))
            leaked |= {
                identifier
                for ids in self.site.ids.values()
                for identifier in ids
                if identifier in answer
            }
        return {text for text in leaked if text not in said}

    def _filled(self, field: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._filled(field, entry) for entry in value]
        if value == 'spec':
            near = self.dice.choice(
                (
                    {},
                    {'same_host': [self._word('consumer')]},
                    {'different_host': [self._word('consumer')]},
                    {'group': {'uuid': self._word('group')}},
                    {'resources': {'VCPU': 5000}},
                )
            )
            return {'resources': {'VCPU': 1}, 'project_id': RED, **near}
        if value == 'description':
            member = {'name': 'a', 'count': 2, 'spec': {'resources': {'VCPU': 1}}}
            uuids = {'uuid': self._word('plan')}
            return {'policies': ['anti-affinity'], 'members': [member], **uuids}
        if value in self.site.words:
            return 'hst-x3305' if value == 'host' else self._word(value)
        return value

    def _word(self, kind: str) -> str:
        if self.dice.randrange(4) == 0:
            return str(uuid.UUID(int=self.dice.getrandbits(128)))
        return self.dice.choice(self.site.words[kind])


@pytest.fixture
def walk(tmp_path, sqlite_template) -> Iterator[RpcWalk]:
    new_walk = RpcWalk(WalkedSite(tmp_path, sqlite_template))
    yield new_walk
    new_walk.close()


@pytest.mark.finding('H5', 'no answer names a host, or what is of another project')
def test_no_answer_over_rpc_is_about_others_than_its_caller_may_know_of(walk):
    served = {topic.name: set(topic._interface.methods) for topic in walk.bus.service._topics}
    assert {topic: set(methods) for topic, methods in METHODS.items()} == {
        topic: methods for topic, methods in served.items() if topic != OF_NOVA
    }, 'every method is walked'
    for topic, methods in METHODS.items():
        for method, (whom, argument, form) in methods.items():
            for _ in range(CALLS):
                walk.call(topic, method, whom, argument, form)
    answered = {method for method, outcome in walk.outcomes if outcome == 'answered'}
    for_one = {
        method
        for methods in METHODS.values()
        for method, (whom, *_) in methods.items()
        if whom == PROJECT
    }
    assert for_one <= answered, sorted(walk.outcomes)
