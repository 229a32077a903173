# SPDX-License-Identifier: Apache-2.0
"""Containerfile and compose.yaml: what they name is there."""

import configparser
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml
from oslo_config import cfg

from gantt import conf as options
from gantt.conf import files, unknown
from gantt.telemetry import log

ROOT = pathlib.Path(__file__).parents[2]
RECIPE = (ROOT / 'Containerfile').read_text()
SERVICES = yaml.safe_load((ROOT / 'compose.yaml').read_text())['services']
OURS = {name: service for name, service in SERVICES.items() if service['image'] == 'gantt'}


def _programs():
    parser = configparser.ConfigParser(delimiters=('=',), interpolation=None)
    parser.read(ROOT / 'setup.cfg')
    lines = parser['options.entry_points']['console_scripts'].strip().splitlines()
    return {line.partition('=')[0].strip() for line in lines}


def test_the_files_of_the_recipe_are_there_and_are_sent_to_the_builder():
    copied = [
        word
        for line in re.findall(r'^COPY (?!--from)(.+)$', RECIPE, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert {'gantt', 'requirements.lock', 'setup.cfg'} <= set(copied)
    for name in ('.containerignore', '.dockerignore'):
        sent = (ROOT / name).read_text().splitlines()
        assert '*' in sent
        for path in copied:
            assert (ROOT / path).exists(), path
            assert f'!{path}' in sent, f'{name}: {path}'


def test_the_image_is_made_in_stages_for_a_user_that_is_not_root():
    stages = re.split(r'^FROM ', RECIPE, flags=re.MULTILINE)[1:]
    assert len(stages) == 2
    assert 'pip' not in stages[-1], 'what builds stays behind'
    (user,) = re.findall(r'^USER (\S+)$', RECIPE, re.MULTILINE)
    assert int(user) > 0 and f'--uid {user}' in stages[-1]
    # Where images come from is said by who builds: a name with a host has a dot or a port.
    images = [
        *re.findall(r'^ARG BASE=(\S+)$', RECIPE, re.MULTILINE),
        *re.findall(r':-([^}]+)}', (ROOT / 'compose.yaml').read_text()),
    ]
    assert len(images) >= 4
    assert not [image for image in images if '/' in image]


def test_commands_are_programs_of_gantt():
    programs = _programs()
    assert re.findall(r'^CMD \["(\S+)"\]$', RECIPE, re.MULTILINE) == ['gantt-scheduler']
    assert {service['command'][0] for service in OURS.values()} <= programs
    commands = [service['command'][0] for service in OURS.values()]
    assert commands.count('gantt-scheduler') == 2
    assert {'gantt-api', 'gantt-compute', 'gantt-manage', 'gantt-planner'} <= set(commands)
    assert 'healthcheck' in OURS['api'], 'who waits for the API waits until it answers'


def test_what_waits_for_another_waits_for_one_that_is_there():
    for name, service in SERVICES.items():
        for other, condition in service.get('depends_on', {}).items():
            assert other in SERVICES, f'{name}: {other}'
            if condition['condition'] == 'service_healthy':
                assert 'healthcheck' in SERVICES[other]
    for service in OURS.values():
        for volume in service['volumes']:
            assert (ROOT / volume.split(':')[0]).exists(), volume


def test_the_configuration_is_understood_and_names_the_services():
    conf = cfg.ConfigOpts()
    for module in (options, log):
        module.register_opts(conf)
    path = ROOT / 'etc' / 'compose' / 'gantt.conf'
    files.read(conf, ['--config-file', str(path)], 'gantt-scheduler')
    assert unknown.unread_options(conf) == []
    password = SERVICES['database']['environment']['POSTGRES_PASSWORD']
    assert conf.database.connection.endswith(f':{password}@database/gantt')
    environment = SERVICES['broker']['environment']
    (url,) = unknown.parse_files(conf)[0]['DEFAULT']['transport_url']
    assert url == (
        f'rabbit://{environment["RABBITMQ_DEFAULT_USER"]}:{environment["RABBITMQ_DEFAULT_PASS"]}'
        f'@broker:5672/{environment["RABBITMQ_DEFAULT_VHOST"]}'
    )
    # By which name the played hosts ask for what is claimed.
    asked = SERVICES['compute']['environment']['GANTT_ENDPOINT']
    assert asked == f'http://api:{conf.api.port}' and 'api' in conf.api.served_names
    assert conf.api.host == '0.0.0.0'
    assert SERVICES['api']['ports'] == [f'127.0.0.1:{conf.api.port}:{conf.api.port}']


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_can_be_built():
    builders = filter(None, map(shutil.which, ('podman', 'buildah', 'docker')))
    # The command alone builds nothing: that of docker asks a daemon.
    builder = next(
        (
            program
            for program in builders
            if not subprocess.run([program, 'info'], capture_output=True).returncode
        ),
        None,
    )
    if builder is None:
        pytest.skip(
            'NO BUILDER: the image is not built; install podman or buildah, or start docker'
        )
    process = subprocess.run(
        [builder, 'build', '-f', 'Containerfile', '-t', 'gantt-test', '.'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert process.returncode == 0, process.stderr[-2000:]
