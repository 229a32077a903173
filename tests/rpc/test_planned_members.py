# SPDX-License-Identifier: Apache-2.0
"""Creates of planned members over the broker: Nova's conductor with its hints, and our own."""

import copy
import uuid
from types import SimpleNamespace

import msgspec
import oslo_messaging as om
import pytest

from devel.doubles import MemoryRecorder
from devel.memory_store.stores import memory_stores
from gantt import client, exceptions, plugin_loader
from gantt.core.messages.report import ClaimUpdate, RegisterHost
from gantt.core.messages.request import Flavor, GroupRef, RequestSpec
from gantt.core.resources.host import Group
from gantt.groups.service.group_members import GroupMembers
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.groups.planned import a_body, plan
from tests.rpc.bus import Bus, load
from tests.rpc.facade import CELL, until
from tests.rpc.shape import shape
from tests.rpc.test_whole_service import HOSTS, REPLY, a_report, chosen_of

CAPTURE = 'boot-anti-affinity-third'
#: What the flavor of the captured boot asks for.
TINY = {'resources': {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}, 'flavor': {'name': 'tiny'}}
PROJECT = 'f0892a03f1574ebb8d8197ddc24e9843'


class Served:
    """A scheduler with five hosts on a bus, and a plan under the uuid of a group of Nova's."""

    def __init__(self):
        self.store = memory_stores()
        self.scheduler = Scheduler(
            self.store,
            plugin_loader.load_pipeline(),
            MemoryRecorder(),
            SchedulerSettings(),
            make_hook=GroupMembers,
        )
        self.scheduler.start()
        self.bus = Bus(facade=self.scheduler)
        claims = client.ClaimsClient(self.bus.carrier())
        stats = client.StatsClient(self.bus.carrier())
        self.epochs = {}
        for name in HOSTS:
            registered = claims.register_host(
                RegisterHost(name=name, boot_nonce='n', cell=CELL, zone='nova')
            )
            self.epochs[name] = registered.epoch
            stats.update_resource_stats(a_report(name, registered.epoch, 1))
        self.follow()
        data = load(f'select_destinations-{CAPTURE}').args['spec_obj']['nova_object.data']
        uuid_ = data['instance_group']['nova_object.data']['uuid']
        # As a boot before the plan has left it.
        self.store.groups.save_group(Group(uuid=uuid_, policy='anti-affinity', project_id=PROJECT))
        body = a_body(
            {'name': 'web', 'count': 3, 'spec': TINY},
            {'name': 'db', 'spec': {'resources': {'VCPU': 2}}},
        )
        self.group = plan(
            SimpleNamespace(store=self.store, scheduler=self.scheduler, turn=self.follow),
            body,
            uuid=uuid_,
            project_id=PROJECT,
        )
        self.conductor = self.bus.nova()

    def follow(self, times=1):
        until(lambda: len(self.scheduler.cache.working) == len(HOSTS))
        self.scheduler.cache.fetch()
        self.scheduler.placing.admission.wake()
        until(lambda: not self.scheduler.cache._news)

    def boot(self, count=1, request_id=None, uuids=None, **hints):
        """A boot by Nova in the group, with hints."""
        uuids = uuids or [str(uuid.uuid4()) for _ in range(count)]
        args = copy.deepcopy(load(f'select_destinations-{CAPTURE}').args)
        spec = args['spec_obj']['nova_object.data']
        spec['scheduler_hints'] |= {name: [value] for name, value in hints.items()}
        spec['instance_uuid'], spec['num_instances'] = uuids[0], len(uuids)
        return self.conductor.call(
            CAPTURE, uuids=uuids, request_id=request_id, spec_obj=args['spec_obj']
        )

    def close(self):
        self.bus.close()
        assert self.scheduler.stop(5)


@pytest.fixture
def served():
    services = Served()
    yield services
    services.close()


def refusal(call, *args, **hints):
    with pytest.raises(om.RemoteError) as caught:
        call(*args, **hints)
    assert caught.value.exc_type == 'NoValidHost'
    return caught.value.value


def test_a_boot_with_both_hints_gets_its_place_under_novas_own_group(served):
    """Nova's own policy of the group is no contradiction: the plan's hold by now."""
    group = served.group
    result = served.boot(gantt_member='web-2')
    assert shape(result) == shape([REPLY[0][:1]])
    assert chosen_of(result) == [group.hosts['web-2']]
    claim = served.store.claims.load_claim(group.claims['web-2'])
    assert claim.is_taken and claim.project_id == PROJECT
    assert not any(served.store.claims.audit().values())


def test_boots_without_a_member_take_the_next_places_and_one_more_is_refused(served):
    group = served.group
    assert chosen_of(served.boot()) == [group.hosts['web-1']]
    assert chosen_of(served.boot(2)) == [group.hosts['web-2'], group.hosts['web-3']]
    assert 'none of the 3 places of web is free' in refusal(served.boot)


def test_a_call_that_nova_repeats_has_the_effect_of_one(served):
    uuids = [str(uuid.uuid4())]
    first = served.boot(request_id='req-1', uuids=uuids, gantt_member='web')
    again = served.boot(request_id='req-1', uuids=uuids, gantt_member='web')
    assert chosen_of(first) == chosen_of(again) == [served.group.hosts['web-1']]
    free = [
        claim.member_name
        for claim in served.store.plans.load_reservations([served.group.uuid])[served.group.uuid]
        if claim.is_free_reservation
    ]
    assert sorted(free) == ['db', 'web-2', 'web-3']


def test_a_boot_of_another_flavor_is_told_the_fields(served):
    reason = refusal(served.boot, gantt_member='db')
    for line in (
        'member db was planned otherwise',
        'resources.VCPU: the plan has 2, the request 1',
        'resources.MEMORY_MB: the plan has none, the request 512',
    ):
        assert line in reason


def test_a_member_that_there_is_not_is_refused_by_name(served):
    assert "no member 'wbe'; did you mean 'web'?" in refusal(served.boot, gantt_member='wbe')
    other = [str(uuid.uuid4())]
    args = copy.deepcopy(load('select_destinations-boot').args)
    args['spec_obj']['nova_object.data']['scheduler_hints'] = {'gantt_member': ['web']}
    with pytest.raises(om.RemoteError) as caught:
        served.conductor.call('boot', uuids=other, spec_obj=args['spec_obj'])
    assert 'names a member; expected its group as well, as the hint group' in caught.value.value


def test_a_boot_in_no_group_of_novas_finds_its_place_by_the_plan(served):
    group = served.group
    args = copy.deepcopy(load('select_destinations-boot').args)
    args['spec_obj']['nova_object.data'] |= {
        'project_id': PROJECT,
        'scheduler_hints': {'gantt_plan': [group.uuid], 'gantt_member': ['web-3']},
    }
    result = served.conductor.call('boot', uuids=[str(uuid.uuid4())], spec_obj=args['spec_obj'])
    assert chosen_of(result) == [group.hosts['web-3']]
    assert served.store.claims.load_claim(group.claims['web-3']).is_taken
    args['spec_obj']['nova_object.data']['scheduler_hints'] = {'gantt_plan': 'web'}
    with pytest.raises(om.RemoteError) as caught:
        served.conductor.call('boot', uuids=[str(uuid.uuid4())], spec_obj=args['spec_obj'])
    assert 'hints.gantt_plan[0]' in caught.value.value


def test_a_boot_in_novas_group_finds_its_place_in_another_plan(served):
    services = SimpleNamespace(store=served.store, scheduler=served.scheduler, turn=served.follow)
    body = a_body({'name': 'app', 'count': 2, 'spec': TINY}, policies=['soft-affinity'])
    group = plan(services, body, project_id=PROJECT)
    assert group.hosts['app-1'] == group.hosts['app-2']
    nova, members = str(uuid.uuid4()), []

    def boot():
        args = copy.deepcopy(load(f'select_destinations-{CAPTURE}').args)['spec_obj']
        spec = args['nova_object.data']
        spec['scheduler_hints'] |= {'gantt_plan': [group.uuid], 'gantt_member': ['app']}
        spec['instance_group']['nova_object.data'] |= {
            'uuid': nova,
            'members': list(members),
            'hosts': [],
        }
        members.append(str(uuid.uuid4()))
        spec['instance_uuid'] = members[-1]
        return served.conductor.call(CAPTURE, uuids=members[-1:], spec_obj=args)

    assert chosen_of(boot()) == [group.hosts['app-1']]
    line = f'the place of app-2 cannot be had: server group {nova} has 1 of at most 1 there'
    assert line in refusal(boot)
    assert not any(served.store.claims.audit().values())


def test_a_create_of_ours_names_the_member_in_its_field(served):
    group, callers = served.group, served.bus.scheduler()
    spec = RequestSpec(
        resources=TINY['resources'],
        project_id=PROJECT,
        group=GroupRef(uuid=group.uuid, member='web-3'),
    )
    with pytest.raises(exceptions.Refused, match='flavor.name: the plan has tiny, the request no'):
        callers.select_destinations(spec=spec, consumers=[str(uuid.uuid4())])
    named = msgspec.structs.replace(spec, flavor=Flavor(name='tiny'))
    answer = callers.select_destinations(spec=named, consumers=[str(uuid.uuid4())])
    (chosen,) = answer.selections[0]
    assert (chosen.host, chosen.claim_id) == (group.hosts['web-3'], group.claims['web-3'])
    update = ClaimUpdate(
        name=chosen.host, epoch=served.epochs[chosen.host], sequence=2, claim_ids=[chosen.claim_id]
    )
    claims = client.ClaimsClient(served.bus.carrier())
    assert [outcome.outcome for outcome in claims.confirm_claims(update)] == ['ok']
    assert served.store.claims.load_claim(chosen.claim_id).state == 'confirmed'
