# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage broker users``: a user of the broker for each role and each compute host.

Dry without ``--apply``.  Then each user's url is written to a file of its own, with a
password that is created for it, and all users and permissions are handed to rabbitmqctl at
once, on its standard input: passwords are on no command line, and only their hashes go
there.
"""

import base64
import hashlib
import json
import os
import pathlib
import secrets
import shlex
import subprocess
import urllib.parse
from collections.abc import Iterator
from typing import Any

import msgspec

from gantt import exceptions, stores
from gantt.cmd import manage_hosts
from gantt.core.resources.host import HostKind
from gantt.rpc.amqp import permissions, transport
from gantt.rpc.amqp.permissions import Grant, User

#: For rabbitmqctl: it starts a virtual machine, and a broker with thousands of users is slow.
RABBITMQCTL_SECONDS = 300
HASHING_ALGORITHM = 'rabbit_password_hashing_sha256'
_SALT_BYTES = 4
_URL_LINE_PREFIX = 'transport_url = '


def add_commands(add: Any, group: Any) -> None:
    """Add the command ``gantt-manage broker users``."""
    parser = add(group('broker', 'The message broker.'), 'users', users, json_too=True, writes=True)
    parser.add_argument(
        '--role',
        action='append',
        choices=list(permissions.PROGRAMS_BY_ROLE),
        default=None,
        help=f'once for each ({", ".join(permissions.DEFAULT_ROLES)}; none where hosts are named)',
    )
    parser.add_argument(
        '--host',
        action='append',
        default=[],
        metavar='NAME',
        dest='compute_hosts',
        help='a compute host, once for each',
    )
    parser.add_argument(
        '--all-hosts', action='store_true', help='each compute host that the database knows'
    )
    parser.add_argument(
        '--prefix', default='gantt', help='how the names of the users begin (gantt)'
    )
    parser.add_argument('--apply', action='store_true', help='make them; else they are only shown')
    parser.add_argument(
        '--files',
        metavar='DIRECTORY',
        help='with --apply: where the url of each user is written to, a file each; a password '
        'that is there already is kept',
    )
    parser.add_argument(
        '--new-passwords', action='store_true', help='with --apply: also in place of these'
    )
    parser.add_argument(
        '--rabbitmqctl',
        default='rabbitmqctl',
        metavar='COMMAND',
        help='how it is run, e.g. "sudo rabbitmqctl" (rabbitmqctl)',
    )


def users(conf: Any) -> int:
    """Users of the message broker by role and compute host: show how they are made, or make them.

    Each may do what its role needs and no more. Shows the commands of rabbitmqctl; with --apply
    makes the users, or brings their permissions up to date.
    """
    command = conf.command
    if command.apply and not command.files:
        raise exceptions.Misconfigured(
            option='--files',
            problem='--apply makes passwords, and there is no place to keep them',
            fix='Name a directory, e.g. /etc/gantt/broker',
        )
    site = BrokerSite(conf, command)
    if command.apply:
        return _apply_definitions(site, command)
    if command.format == 'json':
        print(json.dumps(definitions(site, {}), indent=2))
        return 0
    for user in site.users:
        print(*_ctl_commands(site, user, command.rabbitmqctl), sep='\n')
    print(f'# {len(site.users)} users; nothing was changed: --apply makes them')
    return 0


class BrokerSite:
    """The broker, users and virtual hosts of the configuration and the command line.

    :ivar nova_elsewhere: Nova's topic is on another broker, which rabbitmqctl here does not reach
    :ivar vhosts: virtual hosts of the broker at ``transport_url``
    """

    def __init__(self, conf: Any, command: Any) -> None:
        self.url = transport.configured_url(conf)
        carrier = transport.own_transport(conf, guarded=False)
        try:
            own_url = carrier.url
        finally:
            carrier.cleanup()
        hosts = _compute_hosts(conf, command)
        roles = command.role or ([] if hosts else list(permissions.DEFAULT_ROLES))
        self.nova_url, nova = '', None
        if conf.rpc.nova_enabled or 'shadow' in roles:
            self.nova_url = conf.rpc.nova_transport_url or ''
            nova = own_url.virtual_host or '/'
        if self.nova_url:
            nova = urllib.parse.unquote(urllib.parse.urlsplit(self.nova_url).path[1:]) or '/'
        self.nova_elsewhere = bool(self.nova_url) and _node_addresses(
            self.nova_url
        ) != _node_addresses(self.url)
        names = permissions.broker_names(
            conf.rpc, command.prefix, own_url.virtual_host or '/', nova
        )
        self.users = permissions.users(names, roles, hosts)
        self.vhosts = [names.vhost]

    def grants(self, user: User) -> list[Grant]:
        """Return the grants of a user at the broker of ``transport_url``."""
        return [user.own] if self.nova_elsewhere else user.grants

    def text(self, user: User, password: str) -> str:
        """Return the configuration file of a user."""
        lines = [
            f'# {user.about}: made by gantt-manage broker users',
            '[DEFAULT]',
            f'{_URL_LINE_PREFIX}{_url_as_user(self.url, user.name, password)}',
        ]
        if user.nova is not None and self.nova_url and not self.nova_elsewhere:
            url = _url_as_user(self.nova_url, user.name, password)
            lines += ['[rpc]', f'nova_transport_url = {url}']
        return '\n'.join(lines) + '\n'


def _compute_hosts(conf: Any, command: Any) -> list[str]:
    for name in command.compute_hosts:
        if not manage_hosts.HOST_NAME.fullmatch(name):
            raise exceptions.Misconfigured(
                option='--host',
                problem=f'{name!r} is no name of a host',
                fix='Expected letters, digits, ".", "_" and "-", as [DEFAULT] host of its agent',
            )
    if not command.all_hosts:
        return list(command.compute_hosts)
    rows = (change.row for change in stores.connect(conf).feed.load_everything().hosts)
    registered = sorted(row.name for row in rows if row is not None and row.kind is HostKind.HOST)
    return [*command.compute_hosts, *registered]


def _ctl_commands(site: BrokerSite, user: User, ctl: str) -> Iterator[str]:
    yield f'# {user.about}; its password is asked for, or read from standard input'
    yield f'{ctl} add_user {user.name}'
    for grant in site.grants(user):
        yield from _grant_commands(user, grant, ctl)
    if site.nova_elsewhere and user.nova is not None:
        yield f'# the same user on the broker of Nova, {transport.masked(site.nova_url)}'
        yield f'#   {ctl} add_user {user.name}'
        yield from (f'#   {line}' for line in _grant_commands(user, user.nova, ctl))
    yield ''


def _grant_commands(user: User, grant: Grant, ctl: str) -> Iterator[str]:
    where = f'-p {shlex.quote(grant.vhost)} {user.name}'
    words = (_quoted(word) for word in (grant.configure, grant.write, grant.read))
    yield f'{ctl} set_permissions {where} {" ".join(words)}'
    for topic in grant.topics:
        words = (_quoted(word) for word in (topic.write, topic.read))
        name = shlex.quote(topic.exchange)
        yield f'{ctl} set_topic_permissions {where} {name} {" ".join(words)}'


def _quoted(text: str) -> str:
    return text if text == '' else "'" + text.replace("'", "'\"'\"'") + "'"


def definitions(site: BrokerSite, hashes: dict[str, str]) -> dict[str, Any]:
    """Return the input of ``rabbitmqctl import_definitions``; existing users not named stay.

    :param hashes: user -> hash of its password
    """
    user_grants = [(user, grant) for user in site.users for grant in site.grants(user)]
    return {
        'vhosts': [{'name': name} for name in site.vhosts],
        'users': [
            {'name': user.name, 'tags': ''}
            | (
                {'password_hash': hashes[user.name], 'hashing_algorithm': HASHING_ALGORITHM}
                if user.name in hashes
                else {}
            )
            for user in site.users
        ],
        'permissions': [
            {'user': user.name}
            | {key: getattr(grant, key) for key in ('vhost', 'configure', 'write', 'read')}
            for user, grant in user_grants
        ],
        'topic_permissions': [
            {'user': user.name, 'vhost': grant.vhost} | msgspec.structs.asdict(topic)
            for user, grant in user_grants
            for topic in grant.topics
        ],
    }


def _apply_definitions(site: BrokerSite, command: Any) -> int:
    folder, hashes = pathlib.Path(command.files), {}
    for user in site.users:
        path = folder / f'{user.about}.conf'
        password = None if command.new_passwords else _stored_password(path, user)
        if password is None:
            password = secrets.token_urlsafe(32)
        _write_file(path, site.text(user, password))
        hashes[user.name] = hash_password(password, os.urandom(_SALT_BYTES))
        print(f'{user.name}: {path}')
    document = definitions(site, hashes)
    _import_definitions(shlex.split(command.rabbitmqctl), json.dumps(document))
    print(f'{len(site.users)} users have their permissions')
    for user in site.users:
        if site.nova_elsewhere and user.nova is not None:
            print(
                f'not made: {user.name} on {transport.masked(site.nova_url)}; '
                'run this without --apply for the commands'
            )
    return 0


def _stored_password(path: pathlib.Path, user: User) -> str | None:
    """Return the password of a file that was written before; None: there is none.

    :raises Misconfigured: there is a file, and it is none of this user
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as e:
        raise _unusable_file_error(path, str(e)) from None
    for line in lines:
        url = (
            urllib.parse.urlsplit(line.removeprefix(_URL_LINE_PREFIX))
            if line.startswith(_URL_LINE_PREFIX)
            else None
        )
        # Of several nodes each has the same.
        name, _, password = (url.netloc if url else '').partition('@')[0].partition(':')
        if name == user.name and password:
            return urllib.parse.unquote(password)
    raise _unusable_file_error(path, f'it has no url of user {user.name}')


def _write_file(path: pathlib.Path, text: str) -> None:
    """Write the file whole or not at all, unreadable but for owner and group of the directory."""
    new = path.with_name(path.name + '.new')
    try:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700)
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640), 'w') as file:
            file.write(text)
        new.replace(path)
    except OSError as e:
        raise _unusable_file_error(path, e.strerror or str(e)) from None


def _unusable_file_error(path: pathlib.Path, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='--files', problem=f'{path}: {problem}', fix='Name a directory for these files'
    )


def hash_password(password: str, salt: bytes) -> str:
    """Return a password as the broker keeps it: salted SHA-256."""
    digest = hashlib.sha256(salt + password.encode()).digest()
    return base64.b64encode(salt + digest).decode()


def _import_definitions(ctl: list[str], text: str) -> None:
    try:
        done = subprocess.run(  # nosec B603 # no shell, the operator's console of the broker
            [*ctl, '-q', 'import_definitions'],
            input=text,
            capture_output=True,
            text=True,
            timeout=RABBITMQCTL_SECONDS,
            check=False,
        )
        problem = '' if done.returncode == 0 else _first_line(done.stderr, done.stdout)
    except subprocess.TimeoutExpired:
        problem = f'it has not ended within {RABBITMQCTL_SECONDS} s'
    except (OSError, ValueError) as e:
        problem = str(e)
    if problem:
        raise exceptions.Misconfigured(
            option='--rabbitmqctl',
            problem=f'{shlex.join(ctl)} import_definitions: {problem}',
            fix='Run it where the broker is, as root or its user; RabbitMQ 3.8.2 or newer has it',
        )


def _first_line(*texts: str) -> str:
    lines = (line.strip() for text in texts for line in text.splitlines())
    return next((line for line in lines if line), 'it failed without a message')


def _node_addresses(url: str) -> set[str]:
    """Return the addresses of the nodes of a broker."""
    hosts = urllib.parse.urlsplit(url).netloc.split(',')
    places = (host.rpartition('@')[2] or 'localhost' for host in hosts)
    return {place if ':' in place else f'{place}:5672' for place in places}


def _url_as_user(url: str, user: str, password: str) -> str:
    """Return a url of the broker with other credentials for each of its nodes."""
    parts = urllib.parse.urlsplit(url)
    places = (host.rpartition('@')[2] or 'localhost' for host in parts.netloc.split(','))
    netloc = ','.join(f'{user}:{password}@{place}' for place in places)
    return parts._replace(netloc=netloc).geturl()
