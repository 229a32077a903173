# SPDX-License-Identifier: Apache-2.0
"""Check a running Gantt with real calls: a host appears, is chosen, claimed, freed and goes.

    python check.py --config-file /etc/gantt/gantt.conf --endpoint http://127.0.0.1/scheduler

The host is played by ``gantt-compute --fake 1`` and has a trait that nothing else
has and that the requests ask for, so they land there and nowhere else.  Where the
environment has ``NOVA_TRANSPORT_URL`` a request of nova-conductor is sent where that
says, on Nova's exchange and topic.  With ``--nova-computes`` a host that is none of these
has to have reported as well.  Nothing is left but tombstones.  Where the API asks
for a token, the credentials are those of ``OS_CLOUD`` or ``OS_AUTH_URL`` and its kin.

Exit codes: 0 all is well, 1 it is not and standard error says what.
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

# First: the entry points' package chooses the concurrency backend.
from gantt.cmd import wiring  # isort: skip
import oslo_messaging as om
from oslo_config import cfg

from gantt.cli import endpoint
from gantt.cli.endpoint import Endpoint, Failure
from gantt.rpc.amqp import transport

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from devel import captures  # isort: skip

TRAIT = 'CUSTOM_GANTT_CHECK'
HOST = 'gantt-check-00000'
SHAPE = f"""\
shapes:
  - {{name: check, vcpus: 4, memory_mb: 4096, disk_gb: 100, traits: [{TRAIT}]}}
"""
#: Two passes of gantt-nova-source, a minute apart, and a machine that is busy stacking.
WAIT_SECONDS = 180.0
CALL_SECONDS = 60


class Wrong(Exception):
    """Something is not as it should be."""


def say(line: str) -> None:
    sys.stdout.write(f'{line}\n')
    sys.stdout.flush()


def wait_for(what: str, there: Callable[[], Any]) -> Any:
    """What ``there()`` returns once it is true."""
    end = time.monotonic() + WAIT_SECONDS
    while not (found := there()):
        if time.monotonic() > end:
            raise Wrong(f'{what}: not within {WAIT_SECONDS:.0f} s')
        time.sleep(0.5)
    return found


@contextlib.contextmanager
def a_host(config: str, api: Endpoint) -> Iterator[None]:
    """Play the host, from when the API shows it up until it is forgotten."""
    with tempfile.TemporaryDirectory(prefix='gantt-check-') as folder:
        shapes = pathlib.Path(folder, 'shapes.yaml')
        shapes.write_text(SHAPE)
        own = {'OS_COMPUTE__FARM_PREFIX': 'gantt-check', 'OS_DEFAULT__STATE_PATH': folder}
        words = ['--config-file', config, '--fake', '1', '--name', 'gantt-check-farm']
        playing = subprocess.Popen(
            [sys.executable, '-m', 'gantt.cmd.compute', *words, '--shapes', str(shapes)],
            env=os.environ | own,
        )
        try:
            wait_for(f'host {HOST} in the list', lambda: _reported(api, playing))
            say(f'host {HOST} has registered and reported')
            yield
        finally:
            playing.terminate()
            playing.wait(60)
            with contextlib.suppress(Failure):
                api.delete(f'/v1/hosts/{HOST}')


def _reported(api: Endpoint, playing: subprocess.Popen[bytes]) -> bool:
    if playing.poll() is not None:
        raise Wrong(f'gantt-compute ended with {playing.returncode}')
    with contextlib.suppress(Failure):
        return bool(api.get(f'/v1/hosts/{HOST}'))
    return False


def a_compute(api: Endpoint) -> None:
    """A host that is not ours has reported."""

    def reported() -> list[str]:
        with contextlib.suppress(Failure):
            return [
                host['name']
                for host in api.get('/v1/hosts')['hosts']
                if host['name'] != HOST and host['report_age_seconds'] is not None
            ]
        return []

    found = wait_for('a host of Nova that has reported', reported)
    say(f'of Nova: {", ".join(found)}')


def over_http(api: Endpoint) -> None:
    """Place one consumer through the API."""
    consumer = str(uuid.uuid4())
    body = {
        'request_id': str(uuid.uuid4()),
        'consumers': [consumer],
        'spec': {'resources': {'VCPU': 1, 'MEMORY_MB': 512}, 'required_traits': [TRAIT]},
    }
    placed = api.post('/v1/requests', body)
    _landed('the API', [s['host'] for s in placed['answer']['selections'][0]])
    _claimed_and_freed(api, consumer)


def as_nova(conf: Any, url: str, api: Endpoint) -> None:
    """Ask as nova-conductor does, with a message that one sent."""
    instance = str(uuid.uuid4())
    context, args = captures.load('boot').fresh([instance], f'req-{uuid.uuid4()}')
    flavor = args['spec_obj']['nova_object.data']['flavor']['nova_object.data']
    flavor['extra_specs'] = flavor['extra_specs'] | {f'trait:{TRAIT}': 'required'}
    target = om.Target(exchange=conf.rpc.nova_exchange, topic=conf.rpc.nova_topic, version='4.5')
    conductor = om.get_rpc_client(
        transport.nova_transport(conf), target, timeout=CALL_SECONDS, call_monitor_timeout=30
    )
    try:
        found = conductor.call(context, 'select_destinations', **args)
    except om.MessagingTimeout:
        where = transport.masked(url)
        raise Wrong(f'select_destinations at {where}: no answer in {CALL_SECONDS} s') from None
    except om.RemoteError as e:
        raise Wrong(f'select_destinations: {e.exc_type}: {e.value}') from None
    _landed('select_destinations', [s['nova_object.data']['service_host'] for s in found[0]])
    _claimed_and_freed(api, instance)


def _landed(who: str, hosts: list[str]) -> None:
    if hosts != [HOST]:
        raise Wrong(f'{who} chose {hosts}, expected {HOST} alone')
    say(f'{who}: placed on {HOST}')


def _claimed_and_freed(api: Endpoint, consumer: str) -> None:
    def live() -> list[dict[str, Any]]:
        found = api.get('/v1/claims', consumer=consumer)['claims']
        return [claim for claim in found if claim['state'] in ('reserved', 'confirmed')]

    claims = wait_for(f'a claim of {consumer}', live)
    if [claim['host'] for claim in claims] != [HOST]:
        raise Wrong(f'claims of {consumer}: {claims}')
    api.delete(f'/v1/claims/{claims[0]["id"]}', reason='check of the installation')
    if live():
        raise Wrong(f'claim {claims[0]["id"]} is live after its release')
    say('    claimed, and free again')


def main() -> int:
    """Run the check; exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--config-file', required=True, metavar='FILE')
    parser.add_argument('--endpoint', required=True, metavar='URL', help='of gantt-api')
    parser.add_argument('--nova-computes', action='store_true', help='one has to be known')
    given = parser.parse_args()
    try:
        conf = wiring.parse(['--config-file', given.config_file], 'gantt-check')
        api = endpoint.endpoint_of(given.endpoint, None, CALL_SECONDS)
        if given.nova_computes:
            a_compute(api)
        with a_host(given.config_file, api):
            over_http(api)
            # Not of the command line: everybody on the machine can read that, password and all.
            nova = os.environ.get('NOVA_TRANSPORT_URL')
            if nova:
                conf.set_override('nova_transport_url', nova, group='rpc')
                as_nova(conf, nova, api)
    except (Wrong, Failure, cfg.Error) as e:
        sys.stderr.write(f'gantt check: {e}\n')
        return 1
    say('Gantt answers')
    return 0


if __name__ == '__main__':
    sys.exit(main())
