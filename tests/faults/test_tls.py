# SPDX-License-Identifier: Apache-2.0
"""TLS to a cluster of brokers: who is believed, and where everybody goes when a node dies.

The TLS form of F8.  Certificates are made here; each carries the names of all
nodes, since the library compares every node with the name that it tried first.
"""

import pathlib
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from bench.rig import Rig
from gantt import client, exceptions
from gantt.rpc import wire
from gantt.rpc.amqp import transport
from tests.nemesis import hosts, load, rabbit
from tests.nemesis.site import until
from tests.rpc.bus import a_conf

pytestmark = [
    pytest.mark.rabbit,
    pytest.mark.timeout(600),
    pytest.mark.leaves_sockets,
]

NAMES = ('one', 'two')


class Office:
    """Makes an authority and what it signs."""

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.authority = folder / f'{name}.crt'
        self._openssl(
            'req',
            '-x509',
            '-newkey',
            'rsa:2048',
            '-nodes',
            '-days',
            '2',
            '-subj',
            f'/CN={name}',
            '-keyout',
            folder / f'{name}.key',
            '-out',
            self.authority,
        )

    def papers(self, owner: str, names: str) -> rabbit.Papers:
        """For a server of these names, e.g. ``IP:127.0.0.1,DNS:localhost``."""
        key, request, extensions = (
            self.folder / f'{owner}.{kind}' for kind in ('key', 'csr', 'ext')
        )
        certificate = self.folder / f'{owner}.crt'
        extensions.write_text(f'subjectAltName={names}\n')
        self._openssl(
            'req',
            '-newkey',
            'rsa:2048',
            '-nodes',
            '-subj',
            f'/CN={owner}',
            '-keyout',
            key,
            '-out',
            request,
        )
        self._openssl(
            'x509',
            '-req',
            '-in',
            request,
            '-days',
            '2',
            '-CA',
            self.authority,
            '-CAkey',
            self.folder / f'{self.name}.key',
            '-CAcreateserial',
            '-extfile',
            extensions,
            '-out',
            certificate,
        )
        return rabbit.Papers(self.authority, certificate, key)

    @staticmethod
    def _openssl(*words: object) -> None:
        done = subprocess.run(['openssl', *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def believing(url: str, office: Office, more: str = '') -> str:
    """A transport's URL with TLS, verified."""
    return f'{url}?ssl=true&ssl_ca_file={office.authority}{more}'


@pytest.fixture(scope='module')
def office(tmp_path_factory):
    if shutil.which('openssl') is None:
        pytest.skip('CERTIFICATES: openssl is not installed here')
    return Office(tmp_path_factory.mktemp('office'), 'office')


@pytest.fixture(scope='module')
def papers(office):
    return office.papers('node', 'IP:127.0.0.1,DNS:localhost')


@pytest.fixture(scope='module')
def pair(closing, papers, tmp_path_factory):
    """A cluster of two nodes."""
    return closing.enter_context(rabbit.cluster(tmp_path_factory.mktemp('mq'), 2, papers))


# -- who is believed ------------------------------------------------------------------------
class Impostor:
    """Says that it speaks TLS, and shows papers."""

    def __init__(self, papers: rabbit.Papers) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(papers.certificate, papers.key)
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.url = f'rabbit://guest:hunter2@127.0.0.1:{self._listener.getsockname()[1]}/'
        self.heard = b''
        self._thread = threading.Thread(target=self._serve, args=(context,), daemon=True)
        self._thread.start()

    def _serve(self, context: ssl.SSLContext) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            try:
                end.settimeout(5)
                with context.wrap_socket(end, server_side=True) as talk:
                    self.heard += talk.recv(1000)
            except OSError:
                end.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def refusal(url: str) -> str:
    """What a process says that does not want to talk to this broker."""
    conf = a_conf(url)
    carrier = transport.own_transport(conf)
    with pytest.raises(exceptions.BrokerUnavailable) as caught:
        transport.wait_for_broker(carrier, 0)
    with pytest.raises(exceptions.BrokerUnavailable):
        client.SchedulerClient(carrier).get_request('d0c5fd3e-71c1-4d6f-9d0a-000000000000')
    carrier.cleanup()
    assert 'hunter2' not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ('signed_by', 'names', 'why'),
    [
        ('other', 'IP:127.0.0.1,DNS:localhost', 'self-signed certificate|unable to get'),
        ('office', 'DNS:elsewhere.example', "IP address mismatch|not valid for '127.0.0.1'"),
    ],
    ids=['another authority', 'another name'],
)
def test_who_has_no_papers_is_told_nothing(office, tmp_path, signed_by, names, why):
    signing = office if signed_by == 'office' else Office(tmp_path, 'other')
    broker = Impostor(signing.papers('impostor', names))
    error_text = refusal(believing(broker.url, office))
    assert 'certificate verify failed' in error_text
    assert any(part in error_text for part in why.split('|'))
    broker.close()
    assert broker.heard == b''


def test_a_scheduler_does_not_start_with_the_wrong_authority(pair, tmp_path):
    url = believing(pair.url, Office(tmp_path, 'other'))
    rig = Rig(f'sqlite:///{tmp_path}/gantt.db', url, tmp_path, {'rpc': {'start_wait_seconds': 0}})
    rig.run('gantt-manage', 'db', 'sync')
    process = rig.start('one', 'gantt-scheduler')
    assert process.wait(60) == 1
    assert 'certificate verify failed' in rig.log('one')
    assert 'guest:guest' not in rig.log('one')


def test_a_queue_that_is_lost_is_attached_again(closing, a_site, pair, office):
    """The broker cancels the consumers of a queue that goes; the connections stay."""
    faulty_site = FaultySite(pair, a_site(), office)
    closing.callback(faulty_site.close)
    faulty_site.are_placed(20)
    for _ in range(3):
        faulty_site.lose_the_queue()
        faulty_site.are_placed(20)
    for name in NAMES:
        assert 'Traceback' not in faulty_site.site.rigs[name].log(name)


# -- a node dies ----------------------------------------------------------------------------
class FaultySite:
    """Schedulers and callers on a cluster, all by TLS."""

    def __init__(self, nodes, site, office, more=''):
        self.nodes, self.site = nodes, site
        self.url = site.broker = believing(nodes.url, office, more)
        hosts.add(site.store, [f'host-{n}' for n in range(20)], VCPU=100_000)
        site.start(*NAMES, **hosts.SILENT)
        self.callers = load.Conductors(self.url, attempt_seconds=5)
        self.rng = random.Random(5)

    def close(self):
        self.callers.close()

    def are_placed(self, requests):
        """By the processes that were there before."""
        some = [load.a_request(self.rng, budget_ms=60_000) for _ in range(requests)]
        calls = self.callers.start(some, threads=4).wait(90)
        assert [call.error for call in calls if call.error] == []
        assert [self.site.process(name).poll() for name in NAMES] == [None, None]

    def lose_the_queue(self):
        """Of the calls, that all schedulers consume."""
        with self.callers.carrier.opened() as connection:
            connection.channel().queue_delete(wire.SCHEDULER_TOPIC)

    def in_use(self):
        """The node with the most connections."""
        return max(self.nodes.nodes, key=lambda node: node.connections())

    def a_node_dies(self, requests):
        """In mid-load; all are placed, by the processes that were there before."""
        before = [self.site.process(name).pid for name in NAMES]
        node = self.in_use()
        assert node.connections() > 0
        asking = self.callers.start(
            [load.a_request(self.rng, budget_ms=90_000) for _ in range(requests)], threads=12
        )
        until(lambda: len(asking.records) >= requests // 10, 'some are placed', 60)
        node.kill()
        during, began = len(asking.records), time.monotonic()
        assert during < requests, 'the load ended before the node did'
        calls = asking.wait(150)
        print(f'killed after {during}, all placed {time.monotonic() - began:.1f} s later')
        assert [call.error for call in calls if call.error] == []
        assert [self.site.process(name).poll() for name in NAMES] == [None, None]
        assert [self.site.process(name).pid for name in NAMES] == before
        mine = {call.request.request_id for call in calls}
        lines = load.broken_promises(self.site.store, calls)
        assert [x for x in lines if 'nobody asked' not in x or x[8:44] in mine] == []
        self.site.audit()
        return node


@pytest.mark.postgresql
def test_when_a_node_dies_all_go_to_the_other(closing, a_site, pair, office):
    faulty_site = FaultySite(pair, a_site(), office)
    closing.callback(faulty_site.close)
    faulty_site.a_node_dies(200)
    for name in NAMES:
        assert 'certificate' not in faulty_site.site.rigs[name].log(name)


@pytest.mark.postgresql
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_nodes_of_three_with_quorum_queues_die_in_turn(
    closing, a_site, papers, office, tmp_path_factory
):
    """The queues live on all of them; each comes back before the next dies."""
    nodes = closing.enter_context(rabbit.cluster(tmp_path_factory.mktemp('mq'), 3, papers))
    faulty_site = FaultySite(
        nodes, a_site(), office, '&rabbit_quorum_queue=true&rabbit_transient_quorum_queue=true'
    )
    closing.callback(faulty_site.close)
    for _ in range(4):
        # RabbitMQ may not find the leader of a queue that was just made.
        time.sleep(20)
        faulty_site.a_node_dies(1000).start()
