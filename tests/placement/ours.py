# SPDX-License-Identifier: Apache-2.0
"""Gantt as an operator starts it: ``gantt-api`` and a database for each configuration."""

import contextlib
import json
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench import rig
from gantt.placement_api import policies as placement
from tests.placement.server import ServerError
from tests.placement.states import RULES

#: Nobody listens on port 1: no request of these needs the broker.
NO_BROKER = 'rabbit://guest:guest@127.0.0.1:1/'
ORIGIN = 'http://valid.example.com'

DATABASES: dict[str, Callable[[Path], contextlib.AbstractContextManager[str]]] = {
    'sqlite': lambda folder: contextlib.nullcontext(f'sqlite:///{folder}/gantt.db'),
    'postgresql': lambda folder: rig.postgresql_database(),
    'mysql': lambda folder: rig.mysql_database(),
}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        port: int = taken.getsockname()[1]
        return port


def _options(folder: Path, rules: str, port: int) -> dict[str, dict[str, object]]:
    policies = folder / 'policy.yaml'
    if rules == 'open':
        policies.write_text(json.dumps({rule.name: '@' for rule in placement.RULES}))
    secure = rules == 'secure'
    options: dict[str, dict[str, object]] = {
        # The links in some tests have no path of a mount before them.
        'api': {'port': port, 'threads': 4, 'placement_at_root': True},
        'oslo_policy': {'enforce_new_defaults': secure},
    }
    if rules == 'open':
        options['oslo_policy']['policy_file'] = policies
    if rules == 'cors':
        options['api']['cors_allowed_origins'] = ORIGIN
    return options


@contextlib.contextmanager
def servers(database: str, needed: Iterable[str] = RULES) -> Iterator[dict[str, str]]:
    """Configuration -> URL of a Gantt that has it; all are gone at the end.

    :param database: of ``DATABASES``
    :raises ServerError: one of them does not come up
    """
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='gantt-placement-')))
        urls = {}
        try:
            for rules in needed:
                folder = root / rules
                folder.mkdir()
                url = stack.enter_context(DATABASES[database](folder))
                port = _free_port()
                new_rig = rig.Rig(url, NO_BROKER, folder, _options(folder, rules, port))
                stack.callback(new_rig.close)
                new_rig.run('gantt-manage', 'db', 'sync')
                new_rig.start('api', 'gantt-api')
                new_rig.wait_for('api', 'is ready')
                urls[rules] = f'http://127.0.0.1:{port}'
        except (RuntimeError, OSError, TimeoutError) as e:
            raise ServerError(f'Gantt does not come up on {database}: {e}') from e
        yield urls
