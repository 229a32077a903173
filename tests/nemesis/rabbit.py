# SPDX-License-Identifier: Apache-2.0
"""A RabbitMQ of a test's own, which it may kill: another node, ports and folder.

    with rabbit.node(folder) as node:
        node.url              # as transport_url
        node.kill()           # -9
        node.start()          # again, with the same name, ports and disk
        node.alarm()          # too little memory: publishers are not read any more

    with rabbit.cluster(folder, 2, papers) as nodes:
        nodes.url             # of all of them, by TLS where there are papers
        nodes.cut_off(node)   # from the other nodes; its clients still reach it
        nodes.join(node)      # and again

It takes some four seconds to start, each node of a cluster likewise.
"""

import contextlib
import glob
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

#: The script behind Debian's wrapper, which insists on the user of the service.
SERVERS = ('/usr/lib/rabbitmq/bin/rabbitmq-server',)
CONTROLS = ('/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmqctl',)
#: Part of Erlang; rabbitmqctl does where it is not installed.
CALLER = '/usr/lib/erlang/lib/erl_interface-*/bin/erl_call'
START_SECONDS = 60.0
COOKIE = 'GANTT'


class Papers(NamedTuple):
    """Files for TLS, each in PEM.

    :ivar authority: whom both sides believe
    """

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path


class Node:
    """One node; ``start`` first.

    :param folder: for its files; short, or names in it get too long for the system
    :param papers: it listens with TLS, too
    :param joins: a node that runs, whose cluster this one enters
    :param size: of the whole cluster
    """

    def __init__(
        self,
        folder: pathlib.Path,
        script: str,
        papers: Papers | None = None,
        joins: 'Node | None' = None,
        size: int = 1,
    ) -> None:
        self.folder = folder
        self._script = script
        self._port, distribution = _free_port(), _free_port()
        self.name = f'gantt-{os.getpid()}-{self._port}@localhost'
        (folder / 'plugins').write_text('[].\n')
        self._tls_port = _free_port() if papers else 0
        (folder / 'rabbitmq.conf').write_text('\n'.join(self._lines(papers, joins, size)))
        (folder / 'env').touch()
        cookie = folder / '.erlang.cookie'
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        self._environment = {
            **os.environ,
            'HOME': str(folder),
            'RABBITMQ_NODENAME': self.name,
            'RABBITMQ_NODE_IP_ADDRESS': '127.0.0.1',
            'RABBITMQ_NODE_PORT': str(self._port),
            'RABBITMQ_DIST_PORT': str(distribution),
            'RABBITMQ_MNESIA_BASE': str(folder / 'mnesia'),
            'RABBITMQ_LOG_BASE': str(folder / 'log'),
            'RABBITMQ_CONFIG_FILE': str(folder / 'rabbitmq'),
            'RABBITMQ_CONF_ENV_FILE': str(folder / 'env'),
            'RABBITMQ_ENABLED_PLUGINS_FILE': str(folder / 'plugins'),
            'RABBITMQ_PID_FILE': str(folder / 'pid'),
            # Nodes talk to each other here only.  Two that see each other stay together when a
            # third is cut off from one of them; newer releases of RabbitMQ set this themselves.
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': (
                '-kernel inet_dist_use_interface {127,0,0,1} prevent_overlapping_partitions false'
            ),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def _lines(self, papers: Papers | None, joins: 'Node | None', size: int) -> Iterator[str]:
        # No restraint on the size of what it takes: that is the largest there is.
        yield 'disk_free_limit.absolute = 1MB'
        if papers is not None:
            yield f'listeners.ssl.default = {self._tls_port}'
            yield f'ssl_options.cacertfile = {papers.authority}'
            yield f'ssl_options.certfile = {papers.certificate}'
            yield f'ssl_options.keyfile = {papers.key}'
        if joins is not None:
            yield 'cluster_formation.peer_discovery_backend = classic_config'
            yield f'cluster_formation.classic_config.nodes.1 = {joins.name}'
            yield f'cluster_formation.classic_config.nodes.2 = {self.name}'
        # Of a cluster that falls apart the smaller part stops; one of two would be such a part.
        if size > 2:
            yield 'cluster_partition_handling = pause_minority'
        yield ''

    @property
    def address(self) -> str:
        """With user and password; by TLS where it has that."""
        return f'guest:guest@127.0.0.1:{self._tls_port or self._port}'

    @property
    def url(self) -> str:
        """For a transport."""
        return f'rabbit://{self.address}/'

    def start(self) -> float:
        """Start it and wait until it listens; the seconds that took.

        :raises AssertionError: it does not
        """
        began = time.monotonic()
        with (self.folder / 'out').open('ab') as out:
            self._process = subprocess.Popen(
                [self._script],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while not self.listens:
            output = (self.folder / 'out').read_text(errors='replace')[-2000:]
            assert self._process.poll() is None, output
            assert time.monotonic() - began < START_SECONDS, output
            time.sleep(0.05)
        return time.monotonic() - began

    @property
    def listens(self) -> bool:
        """Whether clients may connect."""
        with contextlib.suppress(OSError):
            socket.create_connection(('127.0.0.1', self._port), 1).close()
            return True
        return False

    def kill(self) -> None:
        """kill -9: the node, and the script that waits for it."""
        process, self._process = self._process, None
        if process is not None:
            # A session of its own, with nothing else in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            # The node itself may take longer to be gone: its port would be taken for the next's.
            end = time.monotonic() + START_SECONDS
            while self.listens:
                assert time.monotonic() < end, 'killed, and still there'
                time.sleep(0.05)

    def alarm(self, resource: str = 'memory') -> None:
        """It has too little memory or disk: whoever publishes is told, and not read any more."""
        if resource == 'memory':
            self._control('set_vm_memory_high_watermark', 'absolute', '1MB')
        else:
            self._control('set_disk_free_limit', str(10**15))

    def calm(self) -> None:
        """It has enough again."""
        self._control('set_vm_memory_high_watermark', '0.4')
        self._control('set_disk_free_limit', '1MB')

    def evaluate(self, expression: str) -> str:
        """In the node; Erlang, with a full stop."""
        caller = next(iter(glob.glob(CALLER)), None)
        if caller is None:
            return self._control('eval', expression).strip()
        # In 2 ms, where rabbitmqctl computes for half a second.
        done = subprocess.run(
            [caller, '-c', COOKIE, '-sname', self.name, '-e'],
            input=f'{expression}\n',
            capture_output=True,
            text=True,
            timeout=60,
        )
        output = done.stdout.strip()
        assert done.returncode == 0 and output.startswith('{ok, '), output + done.stderr
        return output.removeprefix('{ok, ').removesuffix('}')

    def connections(self) -> int:
        """How many clients are connected to this node."""
        return int(self.evaluate('length(rabbit_networking:connections_local()).'))

    def _control(self, *words: str) -> str:
        script = pathlib.Path(self._script).resolve().parent / 'rabbitmqctl'
        done = subprocess.run(
            [script, '-q', '-n', self.name, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout


class Nodes(NamedTuple):
    """A cluster."""

    nodes: Sequence[Node]

    @property
    def url(self) -> str:
        """For a transport: all of them."""
        return f'rabbit://{",".join(node.address for node in self.nodes)}/'

    def cut_off(self, node: Node) -> None:
        """Neither ``node`` nor the others take a connection from each other any more."""
        others = self._names_of_others(node)
        # A node takes another's connection with the cookie that it has for it.  All at once: where
        # one of the others still saw it, both would stop, as they take that for a partial cut.
        node.evaluate(
            f"[erlang:set_cookie(N, 'ANOTHER') || N <- {others}], "
            f'[erlang:disconnect_node(N) || N <- {others}].'
        )

    def join(self, node: Node) -> None:
        """They reach each other again; returns when every node runs and sees all."""
        others = self._names_of_others(node)
        node.evaluate(f"[erlang:set_cookie(N, '{COOKIE}') || N <- {others}].")
        self.wait_until_whole()

    def _names_of_others(self, node: Node) -> str:
        """As a list of Erlang."""
        return '[' + ','.join(f"'{other.name}'" for other in self.nodes if other is not node) + ']'

    def wait_until_whole(self) -> None:
        """Wait until every node runs and sees all others run.

        :raises AssertionError: not within ``START_SECONDS``
        """
        end = time.monotonic() + START_SECONDS
        count, size = 'length(rabbit_nodes:all_running()).', str(len(self.nodes))
        while not all(n.listens and n.evaluate(count) == size for n in self.nodes):
            assert time.monotonic() < end, 'the cluster is not whole'
            time.sleep(0.2)


@contextlib.contextmanager
def node(folder: pathlib.Path, papers: Papers | None = None) -> Iterator[Node]:
    """A node that runs; the test is skipped where none can be had."""
    new_node = Node(folder, _script(), papers)
    new_node.start()
    try:
        yield new_node
    finally:
        new_node.kill()


@contextlib.contextmanager
def cluster(folder: pathlib.Path, size: int, papers: Papers | None = None) -> Iterator[Nodes]:
    """Nodes that run and know each other; likewise."""
    script, nodes = _script(), list[Node]()
    try:
        for number in range(size):
            own = folder / str(number)
            own.mkdir()
            nodes.append(Node(own, script, papers, nodes[0] if nodes else None, size))
            nodes[-1].start()
        yield Nodes(nodes)
    finally:
        for started in nodes:
            started.kill()


def _script() -> str:
    script = next((path for path in SERVERS if pathlib.Path(path).exists()), None)
    script = script or shutil.which('rabbitmq-server')
    if script is None:
        pytest.skip('NO RABBITMQ-SERVER: a test starts and kills its own; install rabbitmq-server')
    return script


def _free_port() -> int:
    with socket.create_server(('127.0.0.1', 0)) as server:
        return server.getsockname()[1]
