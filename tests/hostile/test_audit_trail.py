# SPDX-License-Identifier: Apache-2.0
"""Who changed what: kept for every write over HTTP and every verb of operators, bounded."""

import multiprocessing

import httpx2 as httpx
import pytest

from gantt.cmd.http_app import ROUTES, make_app
from gantt.core.records import audit_trail
from gantt.http.context import Caller
from gantt.telemetry.trail import AuditTrailFile
from tests.http.site import Site, fixed

EVE = Caller(
    user='id-of-eve',
    user_name='eve',
    project='red',
    roles=('member', 'reader'),
    service_roles=('service',),
)
ADMIN = Caller(user='id-of-ann', user_name='ann', system=True, roles=('admin',))


@pytest.fixture(scope='module')
def site():
    return Site()


def _asker(site, kept):
    """``ask(caller, method, path)`` against an application that keeps its trail in ``kept``."""

    def ask(caller, method, path, **fields):
        app = make_app(
            site.insights,
            site.world.store,
            site.client,
            site.metrics,
            strategy=lambda req: caller,
            store_entry=kept.append,
        )
        transport = httpx.WSGITransport(app, remote_addr='192.0.2.7')
        with httpx.Client(transport=transport, base_url='http://localhost') as client:
            return client.request(method, path, **fields)

    return ask


@pytest.mark.finding('L5', 'every change over HTTP says who, what, which project and how it ended')
def test_a_change_over_http_is_on_the_trail(site):
    entries = []
    ask = _asker(site, entries)
    answer = ask(ADMIN, 'PUT', '/v1/hosts/cmp-1/disable', json={'reason': 'fan\n\x1b[31m'})
    assert answer.status_code == 200
    [entry] = entries
    assert (entry.action, entry.outcome, entry.reason) == ('gantt:hosts:disable', 'success', '')
    assert entry.target == 'PUT /v1/hosts/cmp-1/disable'
    assert entry.request_id == answer.headers['x-openstack-request-id']
    initiator = entry.initiator
    assert (initiator.user_id, initiator.user_name, initiator.is_system) == (
        'id-of-ann',
        'ann',
        True,
    )
    assert (initiator.roles, initiator.address) == (('admin',), '192.0.2.7')
    text = audit_trail.entry_line(entry)
    assert text.isascii()
    assert text.isprintable()
    assert audit_trail.decode_line(text) == entry


@pytest.mark.finding('L5', 'what is refused is on the trail as well')
def test_a_change_that_is_refused_is_on_the_trail(site):
    entries = []
    ask = _asker(site, entries)
    assert ask(EVE, 'DELETE', '/v1/hosts/cmp-1').status_code == 403
    assert ask(EVE, 'DELETE', f'/v1/requests/{fixed(9)}').status_code == 404
    assert ask(ADMIN, 'DELETE', '/v1/hosts/nobody').status_code == 404
    assert [(entry.action, entry.outcome, entry.reason) for entry in entries] == [
        ('gantt:hosts:remove', 'failure', 'gantt.forbidden'),
        ('gantt:requests:cancel', 'failure', 'gantt.not_found'),
        ('gantt:hosts:remove', 'failure', 'gantt.not_found'),
    ]
    assert entries[0].initiator.project_id == 'red'
    assert entries[0].initiator.service_roles == ('service',)


def test_looks_dry_runs_and_placements_are_not_on_the_trail(site):
    entries = []
    ask = _asker(site, entries)
    body = {
        'request_id': fixed(1),
        'consumers': [fixed(2)],
        'spec': {'resources': {'VCPU': 1}},
    }
    for method, path, sent in (
        ('GET', '/v1/hosts', None),
        ('DELETE', '/v1/hosts/cmp-5?dry_run=true', None),
        ('POST', '/v1/requests', body),
        ('POST', '/v1/capacity', {'spec': body['spec']}),
    ):
        assert ask(ADMIN, method, path, json=sent).is_success
    assert entries == []
    reading = {'/v1/requests', '/v1/capacity', '/v1/what-if', '/v1/decisions/{decision_id}/replay'}
    # Between zones what is claimed is a request as any other.
    reading |= {'/v1/sealed-hosts', '/zone/v1/evaluations', '/zone/v1/allocations/{key}'}
    reading |= {'/zone/v1/capacity', '/zone/v1/allocations/{key}/lease'}
    reading |= {'/zone/v1/host-digests'}
    assert {route.path for route in ROUTES if not route.is_audited} == reading


def _entry(number):
    return audit_trail.AuditEntry(
        time='t',
        action=f'a{number}',
        target='',
        outcome='success',
        initiator=audit_trail.Initiator(user_id='u'),
    )


def _write(path, start):
    file = AuditTrailFile(path, 4096, 50)
    for number in range(start, start + 50):
        file.write(_entry(number))


def test_processes_share_the_file_and_lose_nothing(tmp_path):
    path = str(tmp_path / 'trail')
    context = multiprocessing.get_context('fork')
    writers = [context.Process(target=_write, args=(path, n * 50)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    entries = AuditTrailFile(path, 4096, 50).newest(1000)
    assert sorted(int(entry.action[1:]) for entry in entries) == list(range(150))


@pytest.mark.finding('L5', 'the trail is bounded')
def test_the_file_is_bounded_and_the_newest_stay(tmp_path):
    file = AuditTrailFile(str(tmp_path / 'trail'), 4096, 2)
    for number in range(300):
        file.write(_entry(number))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 4  # the lock is one of them
    assert max(sizes) <= 4096
    numbers = [int(entry.action[1:]) for entry in file.newest(1000)]
    assert numbers == list(range(numbers[0], 300))
    assert [entry.action for entry in file.newest(2)] == ['a298', 'a299']


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path, caplog):
    AuditTrailFile(str(tmp_path / 'none' / 'trail'), 4096, 2).write(_entry(1))
    assert 'Audit trail cannot be written' in caplog.text
