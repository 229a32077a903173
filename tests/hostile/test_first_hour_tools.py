# SPDX-License-Identifier: Apache-2.0
"""The first hour with the tools: units, played hosts, help, lists."""

import configparser
import functools
import itertools
import json
import re
import shlex
import socket

import httpx2 as httpx
import pytest
from oslo_config import cfg

from gantt import conf as options
from gantt import exceptions
from gantt.cli.endpoint import Endpoint
from gantt.cmd import manage
from gantt.cmd.compute import reserved_claims
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.agent.runner import Runner
from gantt.compute.farm import Farm, FarmPlan, ReservedClaimsTask
from gantt.conf import files
from gantt.core.claims.claim import State
from gantt.http.server import HttpServer
from gantt.telemetry import log
from tests import warm
from tests.cli.conftest import run
from tests.compute.hosts_in_memory import Port
from tests.house.conftest import ROOT
from tests.http.site import Site as HttpSite
from tests.http.site import fixed
from tests.nemesis.site import until


def free_port():
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


# -- two schedulers on a machine ------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    """The file of a site whose schedulers have a log directory and a metrics port in common."""
    path = tmp_path / 'gantt.conf'
    path.write_text(
        f'[DEFAULT]\nstate_path = {tmp_path}\nlog_dir = {tmp_path}\n'
        f'transport_url = kombu+memory:///\nmetrics_port = {free_port()}\n'
    )
    return path


def unit(name):
    """The section [Service] of a unit of the install guide."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    with (ROOT / 'doc' / 'source' / 'install' / name).open() as file:
        parser.read_file(file)
    return dict(parser['Service'])


def read_by(service, instance, config, monkeypatch):
    """The options as a scheduler of a unit's instance reads them."""
    with monkeypatch.context() as environment:
        for pair in shlex.split(service.get('Environment', '').replace('%i', instance)):
            environment.setenv(*pair.split('=', 1))
        conf = cfg.ConfigOpts()
        for module in (options, log):
            module.register_opts(conf)
        files.read(conf, ['--config-file', str(config)], 'gantt-scheduler')
        # Read now: the environment is asked whenever an option is.
        return conf.metrics_host, conf.metrics_port, conf.log_dir, conf.log_file


@pytest.mark.finding('N7', 'a template unit for more than one scheduler on a machine')
def test_each_instance_of_the_template_unit_has_a_port_and_a_log_of_its_own(config, monkeypatch):
    service = unit('gantt-scheduler@.service')
    assert shlex.split(service['ExecStart'])[0].endswith('/gantt-scheduler')
    ports = [free_port() for _ in range(2)]
    logs = set()
    for port in ports:
        _, read, folder, file = read_by(service, str(port), config, monkeypatch)
        assert (read, folder) == (port, str(config.parent)), 'it goes before the file'
        logs.add(file)
    assert logs == {f'gantt-scheduler-{port}.log' for port in ports}
    # All else is as in the unit of one, two of which would want one port.
    alone = unit('gantt-scheduler.service')
    assert {key: service[key] for key in alone} == alone
    assert read_by(alone, '1', config, monkeypatch) == read_by(alone, '2', config, monkeypatch)


# -- played hosts that build ----------------------------------------------------------------


@pytest.fixture
def site():
    return HttpSite()


@pytest.fixture
def endpoint(site, monkeypatch):
    server = HttpServer(site.app, '127.0.0.1', 0, threads=4)
    server.start()
    monkeypatch.setenv('GANTT_ENDPOINT', f'http://127.0.0.1:{server.port}')
    monkeypatch.setenv('COLUMNS', '80')
    yield f'http://127.0.0.1:{server.port}'
    assert server.stop(5)


@pytest.fixture
def farm(site, endpoint):
    """Three played hosts of the site that build what is claimed on them."""
    new_farm = Farm(
        FarmPlan(count=3, seed=7), Port(site.world.store), HostAgentSettings(report_seconds=60)
    )
    runner = Runner(2)
    runner.add(ReservedClaimsTask(new_farm, lambda: reserved_claims(Endpoint(endpoint))))
    new_farm.start()
    until(lambda: new_farm.status()['reporting'] == 3, 'they report')
    site.world.turn()
    runner.start()
    yield new_farm
    assert runner.stop(20) and new_farm.stop(20)


def _claims(site, state):
    return {
        claim.host
        for claim in site.world.store.claims.list_claims(limit=100)
        if claim.state is state
    }


@pytest.mark.finding('N13', 'played hosts build what is claimed')
def test_played_hosts_build_what_is_claimed(site, farm):
    for host in ('fake-00001', 'cmp-1'):
        done = run('select', '--resource', 'VCPU=1', '--resource', 'MEMORY_MB=512', '--host', host)
        assert done.code == 0, done.err
    until(lambda: _claims(site, State.CONFIRMED), 'the claim is confirmed')
    assert _claims(site, State.CONFIRMED) == {'fake-00001'}
    assert _claims(site, State.RESERVED) == {'cmp-1'}, 'somebody else builds there'
    until(lambda: farm.status()['guests'] == 1, 'the guest runs')
    # Its host reports it: what runs is known, and nothing is adopted.
    farm.hosts['fake-00001'].host_agent.changed(True)
    reports = farm.hosts['fake-00001'].host_agent.reports
    until(lambda: farm.hosts['fake-00001'].host_agent.reports > reports, 'it reports')
    site.world.turn()
    (claim,) = json.loads(run('claim', 'list', '--host', 'fake-00001', '-f', 'json').out)
    assert (claim['state'], claim['adopted']) == ('confirmed', False)


def test_of_the_places_of_a_plan_those_are_built_that_a_create_has(site, farm, tmp_path):
    file = tmp_path / 'group.yaml'
    file.write_text(
        'uuid: 5a11aa11-1111-4111-8111-111111111100\n'
        'members: [{name: web, count: 2, spec: {resources: {VCPU: 1, MEMORY_MB: 512}}}]\n'
        'policies: [{policy: near, target: {host: fake-00001}}]\n'
    )
    done = run('group', 'plan', str(file))
    assert done.code == 0, done.err
    create = ('select', '--group', '5a11aa11-1111-4111-8111-111111111100', '--member', 'web-2')
    done = run(*create, '--resource', 'VCPU=1', '--resource', 'MEMORY_MB=512')
    assert done.code == 0, done.err

    def states():
        claims = site.world.store.claims.list_claims(limit=100)
        return {claim.member_name: claim.state for claim in claims}

    until(lambda: State.CONFIRMED in states().values(), 'its host confirms it')
    assert states() == {'web-1': State.RESERVED, 'web-2': State.CONFIRMED}


def test_an_api_that_is_away_is_no_defect():
    with pytest.raises(exceptions.Unavailable, match='nothing answers at'):
        list(reserved_claims(Endpoint(f'http://127.0.0.1:{free_port()}')))


def test_claims_are_built_by_played_hosts_only(config):
    done = warm.run('gantt.cmd.compute', '--config-file', config, '--build-claims')
    assert done.returncode == 1
    assert '--build-claims: it is about hosts that are played' in done.stderr


# -- many members ---------------------------------------------------------------------------


ASKED = ('--resource', 'VCPU=1', '--resource', 'MEMORY_MB=512')


@pytest.mark.finding('N14', 'what-if says first what would become of the members')
def test_what_if_says_first_what_would_become_of_the_members(endpoint):
    first = functools.partial(_first_line, 'what-if', *ASKED)
    assert first('--count', '12', '--remove-host', 'cmp-6') == (
        'all 12 still fit; 0 would be on another host'
    )
    assert first('--count', '60', '--remove-host', 'cmp-1', code=2) == (
        'the 60 would not fit, but as it is'
    )
    assert first('--change-host', 'cmp-1,enabled=no').startswith('it still fits, on ')
    # Who removes all hosts has removed the one it was on.
    gone = [word for n in range(1, 7) for word in ('--remove-host', f'cmp-{n}')]
    assert first(*gone, code=2) == 'it would not fit, but as it is'


def _first_line(*argv, code=0):
    done = run(*argv)
    assert done.code == code, done.err
    return done.out.splitlines()[0]


@pytest.mark.finding('N14', 'a story of many members is short, and its counts are no members')
def test_a_story_of_many_members_is_short(endpoint):
    done = run('what-if', *ASKED, '--count', '40', '--remove-host', 'cmp-6')
    lines = done.out.splitlines()
    assert len(lines) < 90
    assert any(line.strip().startswith('all 40 members on ') for line in lines)
    assert any(line.strip() == 'and 37 more members; -f json has them all' for line in lines)
    # The number of a member stands in no row as if it were a count of hosts.
    rows = [line for line in lines if 'hosts that fit' in line]
    assert rows and not any(line.strip()[0].isdigit() for line in rows)
    assert any(line.strip() == 'member 0' for line in lines)


# -- help and paths -------------------------------------------------------------------------


@pytest.mark.finding('N19', 'the help of gantt-manage is about gantt-manage')
def test_the_help_of_gantt_manage_is_short(capsys):
    assert manage.run(['--help']) == 0
    out = capsys.readouterr().out
    assert '--config-file' in out and 'OS_GANTT_CONFIG_FILE' in out
    assert '--use-syslog' not in out and '--log-date-format' not in out
    for command in ('db', 'host', 'audit', 'config', 'broker'):
        assert f'\n    {command} ' in out
    assert len(out.splitlines()) < 50


@pytest.mark.finding('N19', 'the files may be named once, in the environment')
def test_files_are_named_in_the_environment(tmp_path, monkeypatch):
    one, two, three = (tmp_path / f'{name}.conf' for name in ('one', 'two', 'three'))
    one.write_text('[DEFAULT]\nhost = first\nmetrics_port = 1\n')
    two.write_text('[DEFAULT]\nhost = second\n')
    three.write_text('[DEFAULT]\nhost = third\n')
    monkeypatch.setenv('OS_GANTT_CONFIG_FILE', f'{one}:{two}')

    def read(*argv):
        conf = cfg.ConfigOpts()
        options.register_opts(conf)
        files.read(conf, argv, 'gantt-manage')
        return conf.host, conf.metrics_port

    assert read() == ('second', 1)
    assert read('--config-file', str(three)) == ('third', 0), 'the command line goes first'
    two.unlink()
    with pytest.raises(exceptions.Misconfigured, match=f'{two}: there is no such file'):
        read()


@pytest.mark.finding('N23', 'a path that is not there names the one that was meant')
@pytest.mark.parametrize(
    ('path', 'meant'), [('/health', '/v1/health'), ('/v1/claim', '/v1/claims'), ('/v1/xyzzy', '')]
)
def test_a_path_that_is_not_there_names_the_one_that_was_meant(endpoint, path, meant):
    answer = httpx.get(endpoint + path)
    assert answer.status_code == 404
    detail = answer.json()['errors'][0]['detail']
    assert detail.endswith(f'did you mean {meant}?' if meant else 'was not found'), detail


@pytest.mark.finding('N23', 'a placement by curl is in the documents')
def test_the_placement_by_curl_of_the_documents_works(site, endpoint):
    page = (ROOT / 'doc' / 'source' / 'user' / 'ask.rst').read_text()
    block = page.partition('Over HTTP\n')[2].partition('\nSending the same')[0]
    commands = [shlex.split(line) for line in re.split(r'^   (?=curl )', block, flags=re.M)[1:]]
    assert len(commands) == 3
    codes = []
    for words in commands:
        options = list(itertools.pairwise(words))
        body = dict(options).get('-d')
        (url,) = (word for word in words if word.startswith('http://'))
        answer = httpx.request(
            dict(options).get('-X', 'POST' if body else 'GET'),
            endpoint + url.removeprefix('http://127.0.0.1:8790'),
            headers=dict(text.split(': ', 1) for option, text in options if option == '-H'),
            content=body,
        )
        codes.append(answer.status_code)
    assert codes == [201, 200, 200]
    assert {claim.state for claim in site.world.store.claims.list_claims()} == {State.RELEASED}


@pytest.mark.finding('N23', 'a server group with live claims stands in the way: 409')
def test_a_group_with_live_claims_is_refused_as_in_use(endpoint):
    done = run('group', 'create', 'db', '--policy', 'anti-affinity', '--uuid', fixed(7))
    assert done.code == 0, done.err
    assert run('select', *ASKED, '--group', fixed(7)).code == 0
    for dry_run in ('true', 'false'):
        answer = httpx.delete(
            f'{endpoint}/v1/server-groups/{fixed(7)}',
            params={'dry_run': dry_run},
        )
        error = answer.json()['errors'][0]
        assert (answer.status_code, error['status'], error['code']) == (409, 409, 'gantt.in_use')
        assert '1 ' in error['detail'] and 'live claims' in error['detail']
