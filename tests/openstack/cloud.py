# SPDX-License-Identifier: Apache-2.0
"""A control plane on this machine: Keystone, Glance, Placement, Nova, Gantt.

Databases and the virtual host have names of their own, and all of it is gone after :meth:`down`.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

from tests.openstack import files

HERE = Path(__file__).parent
TREE = HERE.parents[1]
SERVICES = ('keystone', 'glance', 'placement', 'nova', 'network', 'gantt', 'held')
MODULES = {
    'keystone': 'keystone.wsgi.api',
    'glance': 'glance.wsgi.api',
    'placement': 'placement.wsgi.api',
    'nova': 'nova.wsgi.osapi_compute',
}
DATABASES = ('keystone', 'glance', 'placement', 'nova_api', 'nova', 'nova_cell0', 'gantt')


class Trouble(Exception):
    """Something did not come up, or a command failed; the message has the end of its log."""


class Cloud:
    """Everything that runs, and how to start and stop it.

    :param root: an empty folder for files and logs
    :param base: the first of ten ports
    :param gantt: the folder with Gantt's commands
    """

    def __init__(self, root: Path, base: int, gantt: Path, prefix: str) -> None:
        self.root, self.prefix, self.gantt = root, prefix, gantt
        self.ports = {name: base + i for i, name in enumerate(SERVICES)}
        self.keystone = f'http://127.0.0.1:{base}/v3'
        self.mysql = os.environ.get('GANTT_TEST_MYSQL', 'mysql+pymysql://root@127.0.0.1:3306/')
        self.rabbit = os.environ.get('GANTT_TEST_RABBIT', 'rabbit://guest:guest@127.0.0.1:5672/')
        self.bin = Path(sys.prefix) / 'bin'
        self.running: dict[str, subprocess.Popen] = {}

    # -- files, databases, broker ------------------------------------------------------

    def _vhost(self, name: str) -> str:
        return f'{self.prefix}-{name}'

    def _broker(self, name: str) -> str:
        return urlsplit(self.rabbit)._replace(path='/' + self._vhost(name)).geturl()

    def write(self, **words: object) -> None:
        """Write the files anew; ``words`` replace the usual ones."""
        for folder in (
            'log',
            'nova',
            'gantt',
            'keystone',
            'glance/images',
            'glance/staging',
            'glance/tasks',
            'run',
        ):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        usual = {
            'db': self.mysql.rsplit('/', 1)[0],
            'prefix': self.prefix,
            'keystone': self.keystone,
            'etc': Path(sys.prefix) / 'etc',
            'broker': self._broker('nova'),
            'own_broker': self._broker('gantt'),
            'replaces': True,
            'interval': 10,
            'sync': 20,
            'gantt_port': self.ports['gantt'],
            'notifications': 'messagingv2',
            'held': f'http://127.0.0.1:{self.ports["held"]}',
        }
        files.write(self.root, usual | words)

    def _sql(self, *statements: str) -> None:
        url = urlsplit(self.mysql)
        with (
            pymysql.connect(
                host=url.hostname,
                port=url.port or 3306,
                user=url.username or 'root',
                password=url.password or '',
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)

    def make(self) -> None:
        """Empty databases and virtual hosts."""
        self._sql(
            *(
                f'CREATE DATABASE {self.prefix}_{name} CHARACTER SET '
                + ('utf8mb4' if name == 'gantt' else 'utf8mb3')
                for name in DATABASES
            )
        )
        user = urlsplit(self.rabbit).username or 'guest'
        for vhost in ('nova', 'gantt'):
            self.run('rabbitmqctl', '-q', 'add_vhost', self._vhost(vhost))
            self.run(
                'rabbitmqctl',
                '-q',
                'set_permissions',
                '-p',
                self._vhost(vhost),
                user,
                '.*',
                '.*',
                '.*',
            )

    def down(self) -> None:
        """Stop all, drop databases and virtual hosts; logs stay."""
        for name in reversed(list(self.running)):
            self.stop(name)
        self._sql(*(f'DROP DATABASE IF EXISTS {self.prefix}_{name}' for name in DATABASES))
        for vhost in ('nova', 'gantt'):
            subprocess.run(['rabbitmqctl', '-q', 'delete_vhost', self._vhost(vhost)], check=False)

    # -- commands and processes --------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """For every command and service of OpenStack."""
        etc = self.root / 'etc'
        variables = dict(os.environ)
        for name in ('keystone', 'glance', 'placement', 'nova'):
            variables[f'OS_{name.upper()}_CONFIG_DIR'] = str(etc / name)
        variables['OS_KEYSTONE_CONFIG_FILES'] = str(etc / 'keystone/keystone.conf')
        variables['PYTHONWARNINGS'] = 'ignore'
        variables['PATH'] = f'{self.bin}:{variables["PATH"]}'
        return variables

    def run(self, *command: str, fails: bool = False, **extra: str) -> str:
        """What a command prints.

        :raises Trouble: it failed, unless it may
        """
        process = subprocess.run(
            command,
            env=self.environment() | extra,
            text=True,
            capture_output=True,
            check=False,
        )
        if process.returncode and not fails:
            raise Trouble(f'{" ".join(command)}: {process.stdout[-2000:]}{process.stderr[-3000:]}')
        return process.stdout + (process.stderr if fails else '')

    def nova_manage(self, *arguments: str, fails: bool = False) -> str:
        return self.run(
            'nova-manage',
            '--config-file',
            str(self.root / 'etc/nova/nova.conf'),
            *arguments,
            fails=fails,
        )

    def gantt_command(self, name: str, *arguments: str, fails: bool = False) -> str:
        """A command of Gantt that reads the configuration."""
        return self.run(
            str(self.gantt / name),
            '--config-file',
            str(self.root / 'etc/gantt/gantt.conf'),
            *arguments,
            fails=fails,
        )

    def start(self, name: str, *command: str) -> None:
        with open(self.root / 'log' / f'{name}.out', 'ab') as out:
            self.running[name] = subprocess.Popen(
                command,
                env=self.environment(),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        (self.root / 'run' / name).write_text(str(self.running[name].pid))

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        os.killpg(process.pid, how)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def serve(self, name: str) -> None:
        """An API in uWSGI."""
        self.start(
            name,
            str(self.bin / 'uwsgi'),
            '--http-socket',
            f'127.0.0.1:{self.ports[name]}',
            '--module',
            f'{MODULES[name]}:application',
            '--master',
            '--processes',
            '1',
            '--threads',
            '8',
            '--lazy-apps',
            '--die-on-term',
            '--buffer-size',
            '65535',
            '--virtualenv',
            sys.prefix,
            '--need-app',
            '--add-header',
            'Connection: close',
        )

    def wait_port(self, name: str, seconds: float = 90.0) -> None:
        def there() -> bool:
            with socket.socket() as tried:
                return tried.connect_ex(('127.0.0.1', self.ports[name])) == 0

        self.wait(f'port of {name}', there, seconds)

    def wait(self, awaited, condition, seconds: float = 60.0):
        """The first true value of the condition.

        :raises Trouble: none within the time, or a process has ended
        """
        end = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            gone = [n for n, process in self.running.items() if process.poll() is not None]
            if gone or time.monotonic() > end:
                tails = ''.join(self.tail(name) for name in gone)
                raise Trouble(f'{awaited}: not within {seconds} s {gone} {tails}')
            time.sleep(0.5)

    def tail(self, name: str) -> str:
        return (self.root / 'log' / f'{name}.out').read_text(errors='replace')[-3000:]

    # -- one after another ---------------------------------------------------------------

    def up_identity(self) -> None:
        conf = ('keystone-manage', '--config-file', str(self.root / 'etc/keystone/keystone.conf'))
        user = ('--keystone-user', 'root', '--keystone-group', 'root')
        self.run(*conf, 'db_sync')
        self.run(*conf, 'fernet_setup', *user)
        self.run(*conf, 'credential_setup', *user)
        url = self.keystone
        self.run(
            *conf,
            'bootstrap',
            '--bootstrap-password',
            files.PASSWORD,
            '--bootstrap-admin-url',
            url,
            '--bootstrap-internal-url',
            url,
            '--bootstrap-public-url',
            url,
            '--bootstrap-region-id',
            'RegionOne',
        )
        self.serve('keystone')
        self.wait_port('keystone')

    def up_images(self) -> None:
        conf = str(self.root / 'etc/glance/glance-api.conf')
        self.run('glance-manage', '--config-file', conf, 'db_sync')
        self.serve('glance')

    def up_placement(self) -> None:
        self.run('placement-manage', '--config-dir', str(self.root / 'etc/placement'), 'db', 'sync')
        self.serve('placement')
        self.start(
            'held',
            sys.executable,
            str(HERE / 'held.py'),
            str(self.ports['held']),
            f'http://127.0.0.1:{self.ports["placement"]}',
            str(self.root / 'gantt/hold'),
        )

    def up_nova(self) -> None:
        """The databases, conductor, API and hypervisors; no scheduler."""
        cell0 = f'{self.mysql.rsplit("/", 1)[0]}/{self.prefix}_nova_cell0'
        self.nova_manage('api_db', 'sync')
        self.nova_manage('cell_v2', 'map_cell0', '--database_connection', cell0)
        self.nova_manage('db', 'sync')
        self.nova_manage('cell_v2', 'create_cell', '--name', 'cell1')
        self.start('network', sys.executable, str(HERE / 'network.py'), str(self.ports['network']))
        self.wait_port('network')
        self.wait_port('glance')
        self.wait_port('placement')
        conf = ('--config-file', str(self.root / 'etc/nova/nova.conf'))
        self.start(
            'nova-conductor',
            str(self.bin / 'nova-conductor'),
            *conf,
            '--log-file',
            str(self.root / 'log/nova-conductor.log'),
        )
        for host in files.HOSTS:
            self.up_host(host)
        self.serve('nova')
        self.wait_port('nova')

    def up_host(self, host: str) -> None:
        self.start(
            f'nova-compute-{host}',
            sys.executable,
            str(HERE / 'nova_side/hypervisor.py'),
            '--config-file',
            str(self.root / 'etc/nova/nova.conf'),
            '--config-file',
            str(self.root / 'etc/compute' / f'{host}.conf'),
        )

    def up_gantt(self, *names: str) -> None:
        for name in names:
            self.start(
                name,
                str(self.gantt / name),
                '--config-file',
                str(self.root / 'etc/gantt/gantt.conf'),
            )

    def read_cells(self) -> None:
        """Hosts get their cell, and Gantt is told, as the documentation says."""

        def table() -> str:
            self.nova_manage('cell_v2', 'discover_hosts')
            listing = self.nova_manage('cell_v2', 'list_hosts')
            return listing if all(host in listing for host in files.HOSTS) else ''

        new = self.root / 'gantt/cells.new'
        new.write_text(self.wait('hosts of Nova', table, 180))
        new.rename(self.root / 'gantt/cells.txt')
