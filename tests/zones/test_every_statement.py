# SPDX-License-Identifier: Apache-2.0
"""A zone is killed before any statement of a request that goes down, above and below.

Real processes and kill -9.  Whoever was not answered asks again under the same id; half of them
never do.  In the end each consumer has the one claim that its caller was told of, or none.
"""

import time

import msgspec
import pytest

from gantt.core.records.decision import Outcome
from tests.thorough import stride
from tests.world import a_request
from tests.zones.zone_process import ZoneProcess

pytestmark = [pytest.mark.postgresql, pytest.mark.mysql, pytest.mark.timeout(240)]

#: Of one request, and more than there are.
STATEMENTS_MAX = 60
LEASE_SECONDS = 6
#: What says nothing of a request.
PASSING = (Outcome.UNKNOWN, Outcome.BUSY, Outcome.FAILED, Outcome.EXPIRED, Outcome.CONFLICT)


class Zones:
    """A zone without hosts over two with one each; whichever dies is started again."""

    def __init__(self, store_url):
        self.urls = {
            'top': store_url('postgresql'),
            'east': store_url('mysql'),
            'west': store_url('sqlite'),
        }
        self.made = {name: ZoneProcess(name, url) for name, url in self.urls.items()}
        for name, vcpu in (('east', 128), ('west', 16)):  # what is free is better in the east
            self.made[name]('host', f'{name}-1', vcpu)
        self.register()

    def register(self):
        self.made['top'].above(self.made['east'], self.made['west'])
        # One that was silent is left alone for a while, which is not waited for here.
        self.made['top']('forgive')

    def revive(self):
        """Start again what was killed."""
        for name, zone in self.made.items():
            if not zone.is_alive():
                self.made[name] = ZoneProcess(name, self.urls[name])
        self.register()

    def select(self, request):
        """The answer of the top zone; None: it was killed."""
        try:
            return self.made['top']('select', request)
        except (EOFError, OSError):
            self.made['top'].wait_for_its_end()
            return None

    def claims(self, consumer):
        """Zone and id of the live claims of a consumer."""
        return [
            (name, claim)
            for name, zone in self.made.items()
            for holder, claim in zone('claims')
            if holder == consumer
        ]

    def come_to(self, claims, consumer):
        """Soon these are the live claims of a consumer, and no others."""
        eventually(lambda: self.claims(consumer) == claims)

    def stop(self):
        for zone in self.made.values():
            zone.stop()


@pytest.fixture
def zones(store_url):
    all_zones = Zones(store_url)
    yield all_zones
    all_zones.stop()


def eventually(check, seconds=30.0):
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end, 'it did not come to it'
        time.sleep(0.1)
    return value


def until_answered(zones, request):
    """Asked again and again, as a conductor does."""

    def answered():
        answer = zones.select(msgspec.structs.replace(request, repeat=True))
        assert answer is not None, 'nobody is killed any more'
        return answer if answer.outcome not in PASSING else None

    return eventually(answered)


@pytest.mark.parametrize('victim', ['top', 'east'])
def test_a_zone_is_killed_before_any_statement_of_a_request(zones, victim):
    answered, forgotten, statement, step = {}, [], 1, stride(2)
    while statement < STATEMENTS_MAX:
        request = a_request(vcpu=1, budget_ms=4000, lease_seconds=LEASE_SECONDS)
        [consumer] = request.consumers
        zones.made[victim].kill_at(statement)
        answer = zones.select(request)
        has_lived = zones.made[victim].is_alive()
        if has_lived:
            zones.made[victim].kill_at(0)
            if answer.selections and answer.selections[0][0].child == 'east':
                break
            continue
        zones.revive()
        statement += step
        if statement // step % 2:
            forgotten.append(consumer)
            continue
        if answer is None or answer.outcome in PASSING:
            answer = until_answered(zones, request)
        assert answer.outcome is Outcome.PLACED, answer.reason
        [[chosen]] = answer.selections
        zones.come_to([(chosen.child, chosen.claim_id)], consumer)
        answered[request.request_id] = consumer
    assert 3 < statement < STATEMENTS_MAX, 'it lives, once nobody kills it'
    zones.revive()  # its housekeeping may have come to the statement just then
    # A repeat after the end has the same claim, or none where its lease is over.
    for request_id in answered:
        zones.made['top']('cancel', request_id)
    # What nobody has asked for again ends with its lease.
    for consumer in (*answered.values(), *forgotten):
        zones.come_to([], consumer)
    assert [zone('audit') for zone in zones.made.values()] == [0, 0, 0]
