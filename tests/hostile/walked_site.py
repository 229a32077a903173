# SPDX-License-Identifier: Apache-2.0
"""A lively site whose words and figures are marked by who may not see them, and who walks there.

What only operators may know has ``x33`` and two digits in it, what is of the project blue ``x47``,
of red ``x22``; ids that cannot be marked are listed.  What hosts have begins with 17717 or 17718,
what blue has of memory is a prime of its own or a multiple of it.
"""

import itertools
import pathlib
import re
import shutil
import types
import uuid
from typing import Any

import falcon
import httpx2 as httpx

from gantt.cmd import policies
from gantt.cmd.http_app import make_app
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.http.context import Caller
from gantt.http.settings import HttpSettings
from gantt.placement_api.http.app import make_placement_app
from gantt.stores import stores_for_url
from tests.http import identity
from tests.http.cloud import MEMBERS_CLAIM
from tests.http.site import DirectPlans
from tests.zones.tree import VERSION, Zone

BLUE, RED = 'blue-x4701', 'red-x2201'
NOBODYS = 'green'
#: What a guest of blue has of memory.
PRIME = 104_729
OF_OPERATORS = re.compile(r'x33\d\d')
MARKS = {BLUE: re.compile(r'x47\d\d'), RED: re.compile(r'x22\d\d')}
FIGURES = re.compile(r'(?<![\w.])(?:1771[78]\d{4,5}|3543[56]\d{5})(?!\w)|0\.177171')
FIGURES_OF_BLUE = re.compile(
    rf'(?<![\w.])({"|".join(str(PRIME * n) for n in range(1, 12))}|271828)(?!\w)'
)
#: What exists in a zone is told to one above that is of the same owner: locations and traits, by
#: which that rules zones out.
TOLD_TO_OWN_PARENTS = {'x3340', 'x3350'}
#: Keys of what hosts have, and of how many there are, with something in them.
COUNTS = re.compile(
    r'"(?:hosts|survivors|removed|funnel|scores|weighers|provider_id|host_resources|host)":'
    r'(?!\s*(?:0[,}]|""|\[\]|\{\}|null))'
)
#: A place or an offer, which nobody but its zone can read.
SEALED = re.compile(r'g1\.[\w-]{20,}')

PARENTS = {'parent': 'far', 'trusted parent': 'near'}
CALLERS = {
    'member': Caller(user='eve', project=RED, roles=('member', 'reader')),
    'reader': Caller(user='rita', project=RED, roles=('reader',)),
    'other project': Caller(user='gus', project=NOBODYS, roles=('member', 'reader')),
    'service': Caller(user='nova', project='service', roles=('service',)),
    'parent': Caller(user='far', project='of-far', roles=('reader',)),
    'trusted parent': Caller(user='near', project='of-near', roles=('reader',)),
}
WHO = 'X-Walker'


class WalkedSite:
    """Two zones, guests and plans of two projects, and a door at which a header says who asks.

    :param template: an empty database
    :ivar words: kind -> what is there of it, of whomever
    :ivar ids: project -> ids that only it and those who see everything may read
    :ivar hidden: ids that only operators and services may read
    """

    def __init__(self, folder: pathlib.Path, template: pathlib.Path) -> None:
        self._folder, self._template = folder, template
        self.words: dict[str, list[str]] = {}
        self.ids: dict[str, set[str]] = {BLUE: set(), RED: set()}
        self.hidden: set[str] = set()
        self.keys: list[str] = []
        self._groups: list[str] = []
        self._plans_made: list[str] = []
        self.top, self.low = self._zone('top-x3301'), self._zone('low-x3303')
        self.low.hosts(1, 4000, traits=['CUSTOM_BELOW'])
        self._epochs: dict[str, int] = {}
        self._sequence, self._orders = 0, itertools.count(1)
        self.report()
        self.top.above(self.low)
        for name in PARENTS.values():
            registration = {'identity': name, 'project_id': f'of-{name}', 'trusted': name == 'near'}
            assert self.top.put(f'/v1/parents/{name}', registration).status_code == 200
        self._plans = DirectPlans(
            types.SimpleNamespace(  # type: ignore[arg-type]
                store=self.top.store,
                recorder=self.top.recorder,
                clock=self.top.scheduler.clock,
                settings={},
                turn=lambda: None,
            )
        )
        self.client = self._door()
        self._declare()
        self.renew()

    def stop(self) -> None:
        for zone in (self.top, self.low):
            zone.stop()
            zone.store.database.close()

    # -- what there is -------------------------------------------------------------------
    def _zone(self, name: str) -> Zone:
        path = shutil.copy(self._template, self._folder / f'{uuid.uuid4()}.db')
        return Zone(name, stores_for_url(f'sqlite:///{path}')).start()

    def _door(self) -> httpx.Client:
        file = self._folder / 'policy.yaml'
        file.write_text(MEMBERS_CLAIM)
        sections = {'api': {}, 'oslo_policy': {'policy_file': file}}
        self.rules = policies.enforcer(identity.configuration(self._folder, sections))
        top = self.top

        def strategy(req: falcon.Request) -> Caller:
            return CALLERS[req.get_header(WHO)]

        own = make_app(
            *(top.insights, top.store, top.client, top.metrics),
            strategy=strategy,
            rules=self.rules,
            zone_context=top.around,
            plans=self._plans,
        )
        placement = make_placement_app(top.store, top.metrics, HttpSettings(), self.rules, strategy)

        def both(environ: Any, start_response: Any) -> Any:
            path = environ['PATH_INFO']
            if not path.startswith('/placement'):
                return own(environ, start_response)
            inner = {'PATH_INFO': path.removeprefix('/placement'), 'SCRIPT_NAME': '/placement'}
            return placement({**environ, **inner}, start_response)

        transport = httpx.WSGITransport(both)
        return httpx.Client(transport=transport, base_url='http://localhost', headers=VERSION)

    def report(self) -> None:
        """Let all hosts report; one that is new registers."""
        self._sequence += 1
        scheduler = self.top.scheduler
        for number in range(1, 5):
            name = f'hst-x330{number + 4}'
            if name not in self._epochs:
                registered = scheduler.register_host(RegisterHost(name=name, boot_nonce=name))
                self._epochs[name] = registered.epoch
            scheduler.report(
                HostReport(
                    name=name,
                    epoch=self._epochs[name],
                    sequence=self._sequence,
                    full=True,
                    running=None,
                    pending=None,
                    node=f'node-x33{number + 10}',
                    zone='az1' if number < 4 else 'az2',
                    location=f'hall-x3340.r{number % 2}',
                    inventories={
                        'VCPU': Inventory(total=64),
                        'MEMORY_MB': Inventory(total=1_771_750_000),
                        'DISK_GB': Inventory(total=1_771_850),
                    },
                    traits=['CUSTOM_X3350'],
                    metrics={'watts-x3351': ReportedMetric(value=0.177171)},
                ),
                10.0,
            )
        self.top.insights.refresh()

    def _declare(self) -> None:
        store = self.top.store
        metadata = {'rule:kept': 'request.project != "x3360"', 'note': 'x3361'}
        store.declarations.save_aggregate('gold-x3362', metadata, ['hst-x3305'], str(uuid.uuid4()))
        store.quotas.set_quotas(BLUE, {'live_claims': 271_828})
        store.hosts.disable_host('hst-x3308', 'broken fan x3363', 'ann-x3364')

    def ask(self, role: str, method: str, path: str, body: Any = None, **more: Any) -> Any:
        headers = {WHO: role, **more.pop('headers', {})}
        return self.client.request(method, path, json=body, headers=headers, **more)

    def renew(self) -> None:
        """Have each project place and plan something more, and be refused something."""
        self.report()
        for project, user, memory in ((BLUE, 'bob-x4702', PRIME), (RED, 'eve', 1024)):
            self._place(project, user, memory)
        for role in PARENTS:
            self.allocate(role)
        self.learn()

    def _place(self, project: str, user: str, memory: int) -> None:
        mark = 'x4703' if project == BLUE else 'x2203'
        group = {'uuid': str(uuid.uuid4()), 'policy': 'anti-affinity', 'name': f'web-{mark}'}
        # A service says for whom it places; a group is made by its project.
        role = 'member' if project == RED else 'service'
        fields = {} if role == 'member' else {'project_id': project}
        response = self.ask(role, 'POST', '/v1/server-groups', {**group, **fields})
        assert response.status_code == 201, response.text
        resources = {'VCPU': 1, 'MEMORY_MB': memory}
        owner = {'project_id': project, 'user_id': user}
        in_group = {'group': {'uuid': group['uuid']}}
        for spec, status in (
            ({'resources': resources, **in_group}, 201),
            ({'resources': resources}, 201),
            ({'resources': resources, 'required_traits': ['CUSTOM_BELOW']}, 201),
            ({'resources': {**resources, 'VCPU': 5000}}, 409),
        ):
            placed = self.place({**spec, **owner})
            assert placed.status_code == status, placed.text
        self._words_of_host(project)
        plan = {'uuid': str(uuid.uuid4()), 'policies': ['anti-affinity']}
        plan['members'] = [{'name': f'db-{mark}', 'count': 2, 'spec': {'resources': resources}}]
        body = {'request_id': str(uuid.uuid4()), 'group': plan, **owner}
        planned = self.ask('service', 'POST', '/v1/group-plans', body)
        assert planned.status_code == 201, planned.text
        self.ids[project] |= {group['uuid'], plan['uuid'], body['request_id']}
        self._groups.append(group['uuid'])
        self._plans_made.append(plan['uuid'])

    def place(self, spec: dict[str, Any], role: str = 'service') -> httpx.Response:
        """Place one consumer."""
        body = {'request_id': str(uuid.uuid4()), 'consumers': [str(uuid.uuid4())], 'spec': spec}
        owner = spec.get('project_id')
        if owner in self.ids:
            self.ids[owner] |= {body['request_id'], *body['consumers']}
        return self.ask(role, 'POST', '/v1/requests', body)

    def _words_of_host(self, project: str) -> None:
        """Have a host refuse one claim of a project, confirm another."""
        store = self.top.store
        claims = [
            claim for claim in store.claims.list_claims(state='reserved', limit=1000) if claim.host
        ]
        own = [claim for claim in claims if claim.project_id == project]
        for claim, verb in zip(own, ('refuse', 'confirm'), strict=False):
            self._sequence += 1
            update = ClaimUpdate(
                name=claim.host,
                epoch=self._epochs[claim.host],
                sequence=self._sequence,
                claim_ids=[claim.id],
                reason='/opt/hook-x3370.sh: pool x3371 is full' if verb == 'refuse' else '',
            )
            getattr(self.top.scheduler, verb)(update)

    def evaluation(self, consumer: str = '') -> dict[str, Any]:
        """What a zone above asks."""
        request = {
            'request_id': str(uuid.uuid4()),
            'consumers': [consumer or str(uuid.uuid4())],
            'spec': {'resources': {'VCPU': 1, 'MEMORY_MB': 1000}},
        }
        return {'request': request, 'want': 3}

    def allocate(self, role: str) -> list[httpx.Response]:
        """Evaluate and claim as a zone above does; every answer on the way."""
        body = self.evaluation()
        evaluated = self.ask(role, 'POST', '/zone/v1/evaluations', body)
        assert evaluated.status_code == 200, evaluated.text
        key, tokens = str(uuid.uuid4()), [offer['token'] for offer in evaluated.json()['offers']]
        assert tokens, evaluated.text
        claim = {
            'request': {**body['request'], 'request_id': key},
            'evaluated': body['request']['request_id'],
            'tokens': tokens,
            'order': next(self._orders),
        }
        allocated = self.ask(role, 'PUT', f'/zone/v1/allocations/{key}', claim)
        assert allocated.status_code == 200, allocated.text
        self.keys.append(key)
        self.sealed_hosts = [member['sealed_host'] for member in allocated.json()['members']]
        return [evaluated, allocated]

    # -- who may see what ----------------------------------------------------------------
    def learn(self) -> None:
        """Read what there is, as somebody would who sees everything."""
        store = self.top.store
        self.top.recorder.flush()
        self.top.insights.refresh()
        table = self.top.insights.table()
        claims = store.claims.list_claims(limit=10_000)
        decisions = self.ask('service', 'GET', '/v1/decisions', params={'limit': 1000})
        listed = decisions.json()['decisions']
        for claim in claims:
            if claim.project_id in self.ids:
                self.ids[claim.project_id] |= {claim.id, claim.consumer}
        for decision in listed:
            if decision['project_id'] in self.ids:
                self.ids[decision['project_id']].add(decision['id'])
        self.hidden = {host.uuid for host in table.hosts}
        self.hidden |= {aggregate.uuid for aggregate in table.known_aggregates.values()}
        self.hidden |= {self.low.uuid, self.top.scheduler.settings.worker}
        self.words = {
            'group': self._groups,
            'plan': self._plans_made,
            'claim': [claim.id for claim in claims],
            'consumer': [claim.consumer for claim in claims],
            'request': [claim.request_id for claim in claims if claim.request_id],
            'decision': [decision['id'] for decision in listed],
            'host': [host.name for host in table.hosts] + ['low-x3303-1', 'node-x3311'],
            'name': ['gold-x3362', 'low-x3303', 'far', 'near', 'watts-x3351', 'VCPU', 'CUSTOM_A'],
            'project': [BLUE, RED, NOBODYS, 'of-far', 'default'],
            'key': self.keys,
            'sealed_host': self.sealed_hosts,
            'provider': sorted(self.hidden),
        }

    def hand_over(self, project: Any, made: set[str]) -> None:
        """Note that a project has made things under ids that were perhaps another one's."""
        for owner, ids in self.ids.items():
            if owner != project:
                ids -= made

    def leaks(self, role: str, everything: bool, said: str, answer: httpx.Response) -> set[str]:
        """What of an answer its reader may not see and has not said.

        :param everything: the rule of the route lets services at everything
        """
        heads = '\n'.join(f'{key}: {value}' for key, value in answer.headers.items())
        text, lowered = f'{heads}\n{answer.text}', said.lower()
        leaked: set[str] = set()
        is_parent = role in PARENTS
        if is_parent:
            text = SEALED.sub('', text)  # it can open none of them
        else:
            leaked |= set(SEALED.findall(text))
        text = text.lower()
        if role == 'service' and everything:
            return set()
        caller = CALLERS[role]
        operators = set(OF_OPERATORS.findall(text)) | {word for word in self.hidden if word in text}
        if role == 'trusted parent':
            operators -= TOLD_TO_OWN_PARENTS
        else:
            leaked |= set(re.findall(r'\w+filter\b|\w+weigher\b', text))
            leaked |= set(re.findall(r'(?<![\w.])\d+ (?:hosts?|zones?)\b', text))
            leaked |= set(COUNTS.findall(text))
        leaked |= operators
        leaked |= set(FIGURES.findall(text))
        for project, mark in MARKS.items():
            if project != caller.project:
                leaked |= set(mark.findall(text)) | {
                    identifier for identifier in self.ids[project] if identifier in text
                }
        leaked |= {
            figure if isinstance(figure, str) else figure[0]
            for figure in FIGURES_OF_BLUE.findall(text)
        }
        return {text for text in leaked if text.lower() not in lowered}
