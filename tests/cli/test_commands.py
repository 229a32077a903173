# SPDX-License-Identifier: Apache-2.0
"""The commands: what they change, how they exit, what they say when it goes wrong."""

import contextlib
import csv
import io
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml
from cliff import lister, show

from gantt import exceptions
from gantt.cli import main
from gantt.cli.main import commands
from gantt.core.messages.resource_classes import Inventory
from gantt.db.schema import models
from tests.cli.conftest import Gantt, run
from tests.http.site import Site, fixed


# -- placing ---------------------------------------------------------------------------
def test_select_places_and_exits_0(site: Site, gantt: Gantt) -> None:
    placed = gantt('select', '--resource', 'VCPU=2', '--resource', 'MEMORY_MB=1024', '--count', '3')
    assert placed.code == 0
    assert placed.out.startswith('placed 3 on ')
    assert len(site.world.store.claims.list_claims(state='reserved')) == 3


def test_a_dry_run_claims_nothing(site: Site, gantt: Gantt) -> None:
    tried = gantt('select', '--resource', 'VCPU=2', '--dry-run')
    assert tried.code == 0
    assert tried.out.startswith('would place 1 on 1 host')
    assert site.world.store.claims.list_claims() == []


def test_no_valid_host_exits_2_with_the_verdict_and_the_way_to_the_story(gantt: Gantt) -> None:
    refused = gantt('select', '--resource', 'VCPU=400')
    assert refused.code == 2
    assert refused.out == ''
    assert '0/6 hosts fit: ' in refused.err
    assert 'gantt explain ' in refused.err
    assert 'request id req-' in refused.err


def test_a_refusal_is_json_where_the_answer_would_be(gantt: Gantt) -> None:
    refused = gantt('select', '--resource', 'VCPU=9999', '-f', 'json')
    assert refused.code == 2
    error = json.loads(refused.out)['error']
    assert error['code'] == 'gantt.no_valid_host'
    assert error['details']['decision_id']
    assert refused.err.startswith('gantt: ')


def test_a_dry_run_without_room_exits_2(gantt: Gantt) -> None:
    refused = gantt('select', '--resource', 'VCPU=400', '--dry-run')
    assert refused.code == 2
    assert '0/6 hosts fit: ' in refused.err
    assert 'gantt explain' not in refused.err


def test_conflicts_without_end_exit_3(site: Site, gantt: Gantt) -> None:
    site.client.error = exceptions.Conflict(request_id=fixed(1), attempts=20)
    refused = gantt('select', '--resource', 'VCPU=1')
    assert refused.code == 3
    assert 'gave up after 20 attempts' in refused.err


def test_a_busy_scheduler_exits_1(site: Site, gantt: Gantt) -> None:
    site.client.error = exceptions.Busy(reason='2000 requests are waiting', retry_after_ms=500)
    refused = gantt('select', '--resource', 'VCPU=1')
    assert refused.code == 1
    assert 'retry after 500 ms' in refused.err


def test_the_same_request_id_has_the_effect_of_one(site: Site, gantt: Gantt) -> None:
    ask = ('select', '--resource', 'VCPU=1', '--request-id', fixed(9), '--consumer', fixed(10))
    assert gantt(*ask).out == gantt(*ask).out
    assert len(site.world.store.claims.list_claims()) == 1


def test_arguments_reach_the_spec(site: Site, gantt: Gantt) -> None:
    placed = gantt(
        *('select', '-f', 'json', '--resource', 'VCPU=1', '--zone', 'az1', '--count', '2'),
        *('--trait', 'CUSTOM_FAST', '--ignore-host', 'cmp-1', '--alternates', '0'),
        *('--project', 'p1', '--flavor', 'm1.tiny', '--lease', '300'),
    )
    assert placed.code == 0, placed.err
    answer = json.loads(placed.out)['answer']
    assert [[s['host'] for s in places] for places in answer['selections']] == [['cmp-2']] * 2
    assert answer['selections'][0][0]['lease_seconds'] == 300
    assert site.world.store.claims.list_claims()[0].project_id == 'p1'


def test_a_hint_of_nova_is_understood_or_refused_by_name(site: Site, gantt: Gantt) -> None:
    first = json.loads(gantt('select', '--resource', 'VCPU=1', '-f', 'json').out)
    [[there, *_]] = first['answer']['selections']
    command = ('select', '--resource', 'VCPU=1', '-f', 'json', '--alternates', '0')
    for hint, beside in (('same_host', True), ('different_host', False)):
        placed = gantt(*command, '--count', '2', '--hint', f'{hint}={there["consumer"]}')
        answer = json.loads(placed.out)['answer']
        hosts = {places[0]['host'] for places in answer['selections']}
        assert (hosts == {there['host']}) is beside, placed.err
    refused = gantt(*command, '--hint', 'same_host=web-1')
    assert refused.code == 1
    assert 'spec.hints.same_host[0]: expected a UUID' in refused.err
    before = len(site.world.store.claims.list_claims())
    assert gantt(*command, '--hint', 'target_cell=x!y').code == 0
    assert len(site.world.store.claims.list_claims()) == before + 1


def test_rules_and_hints_reach_the_filters(gantt: Gantt, tmp_path: Path) -> None:
    placed = gantt(
        *('select', '--resource', 'VCPU=1', '--hint', 'location=hall.r0', '--hint', 'x=y'),
        *('--rule', 'drop 1: "CUSTOM_SLOW" in traits', '--rule', '"CUSTOM_FAST" in traits'),
    )
    assert placed.code == 0, placed.err
    assert 'cmp-2' in placed.out
    assert 'given up: drop 1: "CUSTOM_SLOW" in traits (user)' in placed.out
    refused = gantt('select', '--resource', 'VCPU=1', '--rule', 'zone = "az1"')
    assert refused.code == 1
    assert "character 6: expected a relation such as '=='" in refused.err
    assert gantt('select', '--resource', 'VCPU=1', '--hint', 'location').code == 64
    file = tmp_path / 'request'
    file.write_text(
        '{"spec": {"resources": {"VCPU": 1}, "hints": {"location": ["hall.r1"], "rules": ["x"]}}}'
    )
    placed = gantt('select', '--request-file', str(file), '--rule', '"CUSTOM_FAST" in traits')
    assert 'cmp-1' in placed.out


def test_a_group_given_with_its_policy_spreads(gantt: Gantt) -> None:
    placed = gantt(
        *('select', '-f', 'json', '--resource', 'VCPU=1', '--count', '3'),
        *('--group', fixed(5), '--group-policy', 'anti-affinity'),
    )
    hosts = [places[0]['host'] for places in json.loads(placed.out)['answer']['selections']]
    assert len(set(hosts)) == 3


@pytest.mark.parametrize('form', ['json', 'yaml'])
def test_a_request_file(site: Site, gantt: Gantt, tmp_path: Path, form: str) -> None:
    body = {'spec': {'resources': {'VCPU': 1}}, 'request_id': fixed(3), 'consumers': [fixed(4)]}
    file = tmp_path / 'request'
    file.write_text(json.dumps(body) if form == 'json' else yaml.safe_dump(body))
    assert gantt('select', '--request-file', str(file)).code == 0
    [claim] = site.world.store.claims.list_claims()
    assert (claim.request_id, claim.consumer) == (fixed(3), fixed(4))


# -- hosts -----------------------------------------------------------------------------
def test_disable_enable_and_remove_a_host(site: Site, gantt: Gantt) -> None:
    ask = ('host', 'disable', 'cmp-3', '--reason', 'fan swap', '--by', 'ann')
    tried = gantt(*ask, '--dry-run')
    assert tried.out == 'dry run: host cmp-3 would be disabled by ann: fan swap\n'
    assert 'disabled' not in gantt('host', 'list').out
    assert gantt(*ask).out == 'host cmp-3 is disabled by ann: fan swap\n'
    assert '    fan swap (ann)\n' in gantt('host', 'list').out
    assert gantt('host', 'enable', 'cmp-3').code == 0
    assert gantt('host', 'remove', 'cmp-6').out == 'host cmp-6 is forgotten\n'
    assert 'cmp-6' not in gantt('host', 'list').out


def test_a_host_that_cannot_be_read_is_named_with_the_problem(site: Site, gantt: Gantt) -> None:
    store, facts, hosts = site.world.store, models.provider_facts, models.providers
    with store.database.engine.begin() as connection:
        first = hosts.c.name == 'cmp-1'
        of_first = facts.c.provider_id.in_(sa.select(hosts.c.id).where(first))
        connection.execute(facts.update().where(of_first).values(facts='{"numa": 1'))
        connection.execute(hosts.update().where(first).values(facts_stamp=1))
    site.insights.cache.forget()
    why = 'cannot be read by this release: facts: Input data was truncated'
    assert f'Not well\n  host cmp-1: {why}\n' in gantt('status').out
    shown = gantt('host', 'show', 'cmp-1').out
    assert f'cmp-1 is disabled: {why}' in ' '.join(shown.split())
    listed = gantt('host', 'list').out
    assert f'{why}\n' in listed
    assert 'cmp-2 ' in listed


def test_of_a_host_that_reports_it_is_said_that_it_comes_back(gantt: Gantt) -> None:
    for dry in (('--dry-run',), ()):
        output = gantt('host', 'remove', 'cmp-1', *dry).out
        assert 'forgotten. It reported ' in output
        assert '"gantt-manage host decommission"' in output


def test_names_may_have_a_slash(gantt: Gantt) -> None:
    assert gantt('aggregate', 'set', 'rack/1', '--host', 'cmp-1').code == 0
    assert gantt('host', 'list', '--aggregate', 'rack/1').out.count('cmp-') == 1
    assert gantt('aggregate', 'remove', 'rack/1').code == 0
    assert gantt('metric', 'set', 'disk/io', '--unit', 'MB/s').code == 0
    assert 'disk/io' in gantt('metric', 'list').out
    assert gantt('metric', 'remove', 'disk/io').code == 0


def test_a_host_with_claims_is_not_removed(site: Site, gantt: Gantt) -> None:
    host = site.place(1).selections[0][0].host
    for more in ((), ('--dry-run',)):
        refused = gantt('host', 'remove', host, *more)
        assert refused.code == 1
        assert 'live claims' in refused.err
    assert gantt('host', 'show', host).code == 0


def test_an_unknown_host_names_similar_ones_and_the_request_id(gantt: Gantt) -> None:
    refused = gantt('host', 'show', 'cmp-9')
    assert refused.code == 1
    assert refused.err.startswith("gantt: host 'cmp-9' was not found; did you mean cmp-")
    assert 'code gantt.not_found, request id req-' in refused.err


def test_a_long_list_is_fetched_page_by_page(gantt: Gantt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('gantt.cli.base.PAGE_SIZE', 2)
    listed = gantt('host', 'list', '--limit', '5', '-f', 'json')
    assert [host['name'] for host in json.loads(listed.out)] == [f'cmp-{i}' for i in range(1, 6)]


def test_hosts_are_sorted_both_ways(gantt: Gantt) -> None:
    def names(*more: str) -> list[str]:
        listed = gantt('host', 'list', '--sort', 'free:MEMORY_MB', '-f', 'json', *more)
        return [host['name'] for host in json.loads(listed.out)]

    assert names()[0] == 'cmp-5'
    assert names('-r')[-1] == 'cmp-5'
    assert gantt('host', 'list', '--sort', 'size').code == 64
    refused = gantt('host', 'list', '--sort', 'free:SIZE')
    assert refused.code == 1
    assert 'query.sort' in refused.err


def test_the_lists_have_stable_keys(gantt: Gantt) -> None:
    first = json.loads(gantt('host', 'list', '-f', 'json', '--limit', '1').out)[0]
    assert sorted(first) == [
        'aggregates',
        'cap',
        'claims',
        'condition',
        'disabled_by',
        'free',
        'name',
        'node',
        'reason',
        'report_age_seconds',
        'uuid',
        'zone',
    ]
    rows = list(csv.DictReader(io.StringIO(gantt('host', 'list', '-f', 'csv').out)))
    assert rows[0]['name'] == 'cmp-1'
    assert json.loads(rows[0]['cap'])['VCPU'] == 16


# -- claims, requests, groups, aggregates -----------------------------------------------
def test_claims_are_found_by_a_prefix_and_released_with_a_reason(site: Site, gantt: Gantt) -> None:
    site.place(1)
    [claim] = site.world.store.claims.list_claims()
    assert claim.id[:8] in gantt('claim', 'list', '--state', 'reserved').out
    assert gantt('claim', 'list', '--state', 'lost').out == 'no claim matches\n'
    assert gantt('claim', 'show', claim.id[:8]).out.startswith(f'claim {claim.id} is reserved\n')
    assert gantt('claim', 'release', claim.id).code == 64
    released = gantt('claim', 'release', claim.id, '--reason', 'guest is gone')
    assert released.out == f'claim {claim.id} on {claim.host} is released: guest is gone\n'
    assert site.world.store.claims.load_claim(claim.id).state == 'released'


def test_a_request_is_cancelled(site: Site, gantt: Gantt) -> None:
    site.place(1, 2)
    dry = gantt('request', 'cancel', fixed(1), '--dry-run')
    assert 'would be cancelled, 2 reserved claims released' in dry.out
    assert gantt('request', 'cancel', fixed(1), '--reason', 'typo').code == 0
    assert [claim.state for claim in site.world.store.claims.list_claims()] == [
        'released',
        'released',
    ]
    assert gantt('request', 'show', fixed(1)).out.startswith(f'request {fixed(1)} is cancelled\n')


def test_the_life_of_what_is_on_a_pool(site: Site, gantt: Gantt) -> None:
    site.world.store.providers.create_provider(
        'ceph-1', inventories={'DISK_GB': Inventory(total=100)}
    )
    site.world.turn()
    site.insights.reload_soon()
    volume = ('--kind', 'pool', '--resource', 'DISK_GB=30')
    assert gantt('capacity', *volume).out.startswith('3 more of 30 GiB disk fit, on 1 of 1 pool\n')
    assert gantt('select', *volume, '--dry-run').out.startswith('would place 1 on 1 pool\n')
    placed = gantt('select', *volume, '--count', '2', '--request-id', fixed(1))
    assert placed.out.startswith('placed 2 on 1 pool\n')
    assert placed.out.splitlines()[2].split()[:3] == ['CLAIM', 'CONSUMER', 'POOL']
    assert gantt('claim', 'list', '-f', 'value', '-c', 'HOST').out == 2 * 'ceph-1\n'
    assert '2 live' in gantt('status').out
    assert gantt('select', *volume, '--count', '2').code == 2
    some = gantt('select', *volume, '--max-resource', 'DISK_GB=50', '--dry-run').out.splitlines()
    assert some[2].endswith('GIVEN') and some[3].split()[-2:] == ['40G', 'disk']
    first, second = (claim.consumer for claim in site.world.store.claims.list_claims())
    dry = gantt('request', 'confirm', fixed(1), '--dry-run')
    assert dry.out == f'dry run: request {fixed(1)}: 2 claims would be confirmed\n'
    assert gantt('request', 'confirm', fixed(1)).code == 0
    released = gantt('request', 'release', fixed(1), '--consumer', first, '--reason', 'deleted')
    assert released.out == f'request {fixed(1)}: 1 claims are released\n'
    states = {claim.consumer: claim.state.value for claim in site.world.store.claims.list_claims()}
    assert states == {first: 'released', second: 'confirmed'}


def test_pools_are_called_pools(site: Site, gantt: Gantt) -> None:
    for name in ('ceph-1', 'ceph-2'):
        inventories = {'DISK_GB': Inventory(total=100)}
        site.world.store.providers.create_provider(name, inventories=inventories)
    site.world.turn()
    site.insights.reload_soon()
    huge = ('--kind', 'pool', '--resource', 'DISK_GB=90000')
    tried = gantt('select', *huge, '--dry-run')
    assert (tried.code, 'No valid pool was found. 0/2 pools fit' in tried.err) == (2, True)
    refused = gantt('select', *huge, '--request-id', fixed(2))
    assert 'No valid pool was found. 0/2 pools fit' in refused.err
    error = json.loads(gantt('select', *huge, '-f', 'json').out)['error']
    assert (error['code'], error['title']) == ('gantt.no_valid_host', 'No valid pool')
    assert error['details']['kind'] == 'pool'
    again = gantt('select', *huge, '--request-id', fixed(2))
    assert again.err.count('No valid pool was found.') == 1
    assert gantt('explain', fixed(2)).out.startswith('no valid pool, ')
    assert gantt('decision', 'show', fixed(2)).out.splitlines()[0].endswith(': no valid pool')
    assert 'no valid pool' in gantt('replay', fixed(2)).out + gantt('decision', 'list').out
    assert gantt('select', '--resource', 'VCPU=400').code == 2
    site.world.turn()
    listed = gantt(
        'decision', 'list', '-f', 'value', '-c', 'outcome,kind', '--filter', 'outcome=n*'
    )
    assert listed.out.splitlines().count('no_valid_host\tpool') == 3
    assert listed.out.splitlines().count('no_valid_host\thost') == 1
    status = gantt('status').out
    assert 'Not placed in the last hour: 1 no valid host, 3 no valid pool\n' in status
    assert gantt('select', '--kind', 'pool', '--resource', 'DISK_GB=3').code == 0
    assert gantt('claim', 'list').out.split()[2] == 'PROVIDER'
    claim = site.world.store.claims.list_claims()[0].id
    assert '  pool       ceph-' in gantt('claim', 'show', claim).out
    assert gantt('claim', 'show', claim, '-f', 'value', '-c', 'kind').out == 'pool\n'


def test_groups_are_made_listed_and_removed(gantt: Gantt) -> None:
    ask = ('group', 'create', 'web', '--policy', 'anti-affinity', '--uuid', fixed(8))
    assert gantt(*ask, '--dry-run').code == 0
    assert gantt('group', 'list').out == 'there is no server group\n'
    assert gantt(*ask).code == 0
    assert fixed(8) in gantt('group', 'list').out
    other = gantt('group', 'create', 'web', '--policy', 'affinity', '--uuid', fixed(8))
    assert other.code == 1
    assert gantt('group', 'remove', fixed(8)).code == 0
    assert gantt('group', 'remove', fixed(8)).code == 1


def test_aggregates_are_set_listed_and_removed(gantt: Gantt) -> None:
    ask = ('aggregate', 'set', 'fast', '--property', 'ssd=true', '--zone', 'z', '--host', 'cmp-1')
    assert gantt(*ask, '--dry-run').code == 0
    assert gantt('aggregate', 'list').out == 'there is no aggregate\n'
    assert gantt(*ask).code == 0
    assert gantt('aggregate', 'set', 'fast', '--property', 'ssd=').code == 0
    [aggregate] = json.loads(gantt('aggregate', 'list', '-f', 'json').out)
    assert (aggregate['metadata'], aggregate['hosts']) == ({'availability_zone': 'z'}, ['cmp-1'])
    assert gantt('host', 'list', '--aggregate', 'fast').out.count('cmp-') == 1
    assert gantt('aggregate', 'remove', 'fast').code == 0


# -- wrong usage and trouble --------------------------------------------------------------
@pytest.mark.parametrize(
    'argv',
    [
        (),
        ('hots',),
        ('host', 'list', '--sorted'),
        ('host', 'disable', 'cmp-1'),
        ('select',),
        ('select', '--resource', 'VCPU=two'),
        ('select', '--resource', 'VCPU'),
        ('select', '--resource', 'VCPU=1', '--count', '0'),
        ('select', '--resource', 'VCPU=1', '--count', '2', '--consumer', 'x'),
        ('select', '--request-file', '/nonexistent/request'),
        ('host', 'list', '--limit', '0'),
        ('host', 'list', '-f', 'xml'),
        ('explain',),
        *(('--timeout', seconds, 'status') for seconds in ('nan', '-1', '0', '1e400', 'x')),
        *(('host', 'show', name) for name in ('', '.', '..')),
        ('host', 'remove', '..'),
        ('claim', 'show', ''),
        ('decision', 'show', ''),
        ('request', 'show', '.'),
        ('metric', 'set', 'load', '--lower', 'nan'),
        ('metric', 'set', 'load', '--upper', '1e400'),
        ('metric', 'set', 'load', '--stale-after', 'x'),
        ('select', '--resource', 'VCPU=²'),
        ('select', '--resource', f'VCPU={"1" * 5000}'),
        ('select', '--resource', 'VCPU=1', '--group-policy', 'affinity'),
    ],
    ids=lambda argv: ' '.join(argv)[:60],
)
def test_wrong_usage_exits_64_and_says_what(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    refused = run(*argv)
    assert refused.code == 64
    errors = (refused.err + capsys.readouterr().err).strip()
    assert errors
    assert (
        ' invalid _' not in errors
        and 'invalid resource' not in errors
        and 'Traceback' not in errors
    )


def test_a_near_miss_of_a_command_is_named() -> None:
    assert 'did you mean host ' in run('hots', 'list').err
    assert run('--url', 'x', 'host', 'list').err.startswith("gantt: '--url' is no option of gantt")


def test_a_dead_endpoint_is_one_line_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        url = f'http://127.0.0.1:{taken.getsockname()[1]}'
        refused = run('--endpoint', url, 'status')
    assert refused.code == 1
    assert refused.err == (
        f'gantt: nothing answers at {url} (connection refused); start gantt-api there, '
        'or name another with --endpoint or GANTT_ENDPOINT\n'
    )


def test_an_endpoint_that_is_no_url() -> None:
    refused = run('--endpoint', 'nonsense', 'status')
    assert refused.code == 64
    assert 'expected the form http://127.0.0.1:8790' in refused.err


@contextlib.contextmanager
def somebody(kind: str, body: bytes) -> Iterator[str]:
    """An endpoint that answers everything so."""
    from gantt.http.server import HttpServer

    def hello(environ: object, start_response: object) -> list[bytes]:
        start_response('200 OK', [('Content-Type', kind)])  # type: ignore[operator]
        return [body]

    server = HttpServer(hello, '127.0.0.1', 0)  # type: ignore[arg-type]
    server.start()
    yield f'http://127.0.0.1:{server.port}'
    server.stop(5)


@pytest.mark.parametrize(
    ('kind', 'body'),
    [
        ('text/html', b'<html>'),
        ('text/plain', b'hello'),
        ('application/json', b'"hello"'),
        ('application/json', b'[1'),
        ('application/json', b'[' * 100_000),
    ],
)
def test_somebody_else_at_the_endpoint(kind: str, body: bytes) -> None:
    with somebody(kind, body) as url:
        refused = run('--endpoint', url, 'status')
        asked = run('--endpoint', url, 'select', '--resource', 'VCPU=1', '--request-id', fixed(9))
    assert refused.code == asked.code == 1
    assert 'not as Gantt does' in refused.err
    assert f'it may have been placed; see: gantt request show {fixed(9)}' in asked.err


def test_an_answer_of_another_form_is_one_line() -> None:
    with somebody('application/json', b'{"hosts": 3}') as url:
        for argv in (('status',), ('host', 'list'), ('host', 'show', 'cmp-1')):
            refused = run('--endpoint', url, *argv)
            assert refused.code == 1
            assert len(refused.err.splitlines()) == 1
            assert refused.err.startswith('gantt: an answer is not as expected')


@pytest.mark.parametrize(
    ('body', 'expected'),
    [
        ('{"budget_ms": "x", "spec": {"resources": {"VCPU": 1}}}', 'body.budget_ms'),
        ('{"budget_ms": 1e999, "spec": {"resources": {"VCPU": 1}}}', 'cannot be sent as JSON'),
        ('spec: {resources: {VCPU: .nan}}', 'cannot be sent as JSON'),
        ('spec: {resources: {VCPU: 2026-01-01}}', 'cannot be sent as JSON'),
        ('spec: {resources: {VCPU: 2026-99-99}}', 'neither JSON nor YAML'),
        ('[' * 100_000, 'neither JSON nor YAML'),
        ('{"spec": {"resources": {}}', "neither JSON nor YAML: line 1, column 27: expected ',' or"),
        ('{"spec": {"resorces": {"VCPU": 1}}}', 'its spec has resorces, and no resources; what'),
        ('', 'expected one object'),
    ],
)
def test_a_file_with_values_that_are_none(
    gantt: Gantt, tmp_path: Path, body: str, expected: str
) -> None:
    (tmp_path / 'request').write_text(body)
    refused = gantt('select', '--request-file', str(tmp_path / 'request'))
    assert refused.code in (1, 64)
    assert expected in refused.err
    assert 'Traceback' not in refused.err


def test_what_aliases_of_a_file_expand_to_has_a_bound(gantt: Gantt, tmp_path: Path) -> None:
    doubling = ['a0: &a0 [x, y]', *(f'a{n}: &a{n} [*a{n - 1}, *a{n - 1}]' for n in range(1, 24))]
    pairs = ['a0: &a0 [k: x]'] + [
        f'a{n}: &a{n} [' + ', '.join(f'k: *a{n - 1}' for _ in range(9)) + ']' for n in range(1, 9)
    ]
    merges = ['a0: &a0 {x: y}'] + [
        f'a{n}: &a{n} {{<<: [' + ', '.join([f'*a{n - 1}'] * 9) + ']}' for n in range(1, 9)
    ]
    for body, expected in (
        ('\n'.join(doubling), 'values with all aliases expanded, got 67,108,861'),
        ('spec: &a {resources: *a}', 'an alias stands for what contains it'),
        (' ' * (16 << 20) + '{}', 'expected at most 16,777,216 characters'),
        ('\n'.join(line.replace('[', '!!pairs [', 1) for line in pairs), 'aliases expanded'),
        ('\n'.join(merges), 'aliases expanded, got'),
        ('a: !!bool x', 'neither JSON nor YAML'),
        ('a: !!timestamp abc', 'neither JSON nor YAML'),
        ('a: !!int ""', 'neither JSON nor YAML'),
    ):
        (tmp_path / 'request').write_text(body)
        refused = gantt('select', '--request-file', str(tmp_path / 'request'))
        assert refused.code == 64
        assert expected in refused.err


def test_an_answer_that_cannot_be_written_says_what_was_done(site: Site, endpoint: str) -> None:
    gantt = [sys.executable, '-m', 'gantt.cli.main', '--endpoint', endpoint]
    with open('/dev/full', 'w') as full:
        for argv, expected in (
            (['select', '--resource', 'VCPU=1', '--request-id', fixed(9)], fixed(9)),
            (['host', 'disable', 'cmp-1', '--reason', 'x'], 'cmp-1 is disabled'),
            (['host', 'list'], 'No space left on device'),
            (['--help'], 'No space left on device'),
        ):
            process = subprocess.run(gantt + argv, stdout=full, stderr=subprocess.PIPE, text=True)
            assert process.returncode == 1, process.stderr
            assert expected in process.stderr
            assert 'Traceback' not in process.stderr and 'Exception ignored' not in process.stderr
    assert len(site.world.store.claims.list_claims()) == 1


def test_an_endpoint_that_does_not_answer_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        url = f'http://127.0.0.1:{silent.getsockname()[1]}'
        refused = run('--endpoint', url, '--timeout', '0.2', 'status')
    assert refused.code == 1
    assert 'did not answer within 0.2 s' in refused.err


# -- help and speed -------------------------------------------------------------------------
def test_help_lists_every_command_at_80_columns() -> None:
    shown = run('--help')
    assert shown.code == 0
    for name in commands():
        assert f'  {name} ' in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines())


@pytest.mark.parametrize('name', commands())
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture) -> None:
    assert run(*name.split(), '--help').code == 0
    assert f'usage: gantt {name}' in capsys.readouterr().out


def test_starting_imports_neither_the_service_nor_the_http_client() -> None:
    heavy = ('numpy', 'httpx2', 'sqlalchemy', 'falcon', 'oslo_messaging', 'oslo_config')
    code = (
        'import sys; from gantt.cli.main import main; main(["--version"]); '
        f'print([m for m in {heavy!r} if m in sys.modules])'
    )
    process = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True
    )
    assert process.stdout.splitlines()[-1] == '[]'


def test_a_group_may_have_policies_at_any_level(gantt: Gantt, tmp_path: Path) -> None:
    rack = '{"policy": "anti-affinity", "level": "rack", "of": "front"}'
    ask = ('group', 'create', 'web', '--uuid', fixed(8))
    created = gantt(*ask, '--policy', rack, '--policy', 'soft-affinity', '--subgroup', 'front=a,b')
    assert created.out == f'server group {fixed(8)} is there\n'
    assert gantt('group', 'show', fixed(8)).out.splitlines() == [
        f'server group {fixed(8)} (web)',
        'policy anti-affinity of front at rack',
        'policy affinity at host (soft 1)',
        'subgroup front: a, b',
        'nobody is in it',
    ]
    path = tmp_path / 'rule.yaml'
    path.write_text(f'policies: [{rack}, soft-affinity]\nsubgroups: {{front: [a, b]}}\n')
    assert gantt(*ask, '--policies-file', str(path)).code == 0
    path.write_text('policies: [affinity]\n')
    other = gantt(*ask, '--policies-file', str(path))
    assert other.code == 1
    assert 'exists with policies anti-affinity of front at rack; affinity at host' in other.err


@pytest.mark.parametrize(
    ('arguments', 'problem'),
    [
        ((), 'expected --policy or --policies-file'),
        (('--policy', '{"policy"'), 'is no JSON'),
        (('--policy', 'affinity', '--subgroup', 'a'), 'expected NAME=MEMBER,MEMBER'),
    ],
)
def test_a_rule_that_cannot_be_read_is_told(
    gantt: Gantt, arguments: tuple[str, ...], problem: str
) -> None:
    refused = gantt('group', 'create', 'web', *arguments)
    assert refused.code == 64
    assert problem in refused.err


def test_all_commands_have_the_forms_and_options_of_cliffs_own() -> None:
    """All but files and the stream of events, which have forms of their own."""
    others = {'complete', 'events', 'aggregate export', 'group export', 'group import'}
    of_cliff = {}
    for base in (lister.Lister, show.ShowOne):
        kind = type('Own', (base,), {'take_action': None, '__doc__': 'Print it.'})
        parser = kind(None, None).get_parser('own')
        [forms] = [action.choices for action in parser._actions if action.dest == 'formatter']
        # A former name of --column, which its help does not show.
        of_cliff[base] = set(forms), {*parser._option_string_actions} - {'--variable'}
    commands = main.Gantt('', '', main.Commands(), deferred_help=True)
    for name, parser in commands.parsers().items():
        [forms] = [action.choices for action in parser._actions if action.dest == 'form']
        if name in others:
            continue
        is_list = 'table' in forms and 'shell' not in forms
        known_forms, options = of_cliff[lister.Lister if is_list else show.ShowOne]
        assert known_forms <= set(forms), name
        assert options <= {*parser._option_string_actions}, name
