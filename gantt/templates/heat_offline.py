# SPDX-License-Identifier: Apache-2.0
"""Templates of Heat (HOT and CloudFormation), read by Heat's own library in a process of its own.

The library expands nested stacks and groups of resources, with nothing of a cloud at hand.  What it
reads may come from anywhere, so that it runs in a child with limits; a child that dies, hangs or
answers something else is an error that names the template.
"""

import os
import pathlib
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Self

import msgspec

import gantt
from gantt import exceptions
from gantt.core.messages import base
from gantt.nova.model import flavor as nova_flavor
from gantt.templates.flavors import Flavors
from gantt.templates.imported import (
    HINTS_OF_CREATES,
    ImportedGroup,
    TemplateGroup,
    TemplateServer,
    TemplateSource,
    import_group,
    metadata_fields,
)

#: Program of the child, which imports nothing of Gantt.
PROGRAM = pathlib.Path(gantt.__file__).parent / 'cmd' / 'heat_templates.py'
#: Time for the library to start, and for one template; bytes of one answer.
SECONDS = 120.0
ANSWER_BYTES_MAX = 64 * 2**20
_NETWORKS = {
    'namespace': 'without network: in a namespace of its own that has none',
    'refused': 'without network: connections are refused, as the kernel gives no namespace',
}

Path = list[str | int]


class _Server(msgspec.Struct):
    """A server of an expanded template; numbers in a path are members of groups of resources."""

    path: Path
    flavor: str | None
    volume_backed: bool
    hints: dict[str, Any]
    image: str | None = None
    availability_zone: str | None = None
    metadata: Any = None
    group: Path | str | None = None


class _Group(msgspec.Struct):
    path: Path
    policies: list[Any]
    rules: dict[str, Any] | None = None
    metadata: Any = None


class _Other(msgspec.Struct):
    """A resource that is no member, and why."""

    path: Path
    problem: str


class _Expanded(msgspec.Struct):
    """Servers, server groups and other resources of an expanded template."""

    servers: list[_Server]
    groups: list[_Group]
    others: list[_Other]


class _Answer(msgspec.Struct):
    """An answer of the child: one of these."""

    heat: str | None = None
    network: str = ''
    missing: str | None = None
    field: str | None = None
    problem: str = ''
    servers: list[_Server] | None = None
    groups: list[_Group] = []
    others: list[_Other] = []


class HeatLibrary:
    """Heat's library in a child process, to be used as a context: it reads any number of templates.

    :param python: Python that has the library; None: this one
    :param seconds: wall time for its start, and for each template
    :param program: what the child runs
    """

    def __init__(
        self, python: str | None = None, seconds: float = SECONDS, program: pathlib.Path = PROGRAM
    ) -> None:
        self._python = python or sys.executable
        self._seconds = seconds
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        #: How templates are read.
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(
        self, template: str, environments: Any = (), parameters: Mapping[str, str] | None = None
    ) -> _Expanded:
        """Return what a template expands to.

        :raises InvalidMessage: names the resource and what is wrong, or else the template
        """
        if self._process is None:
            self._start(template)
        job = {
            'template': os.path.abspath(template),
            'environments': [os.path.abspath(path) for path in environments],
            'parameters': dict(parameters or {}),
        }
        answer = self._answer(template, msgspec.json.encode(job) + b'\n')
        if answer.field is not None:
            where = template if answer.field == 'template' else answer.field
            raise exceptions.invalid(where, answer.problem)
        if answer.servers is None:
            raise self._failure(template, 'gave no servers')
        return _Expanded(answer.servers, answer.groups, answer.others)

    def _start(self, template: str) -> None:
        # Neither secrets nor settings of this process; -I: nor modules that lie about.
        environment = {'PATH': os.defpath, 'LANG': 'C.UTF-8'}
        try:
            self._process = subprocess.Popen(  # nosec B603 # no shell, our own program
                [self._python, '-I', '-B', str(self._program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as e:
            raise exceptions.invalid('python', f'{self._python}: {e.strerror}') from None
        answer = self._answer(template, b'')
        if answer.missing is not None:
            self._end()
            raise exceptions.invalid(
                'python',
                f"{self._python} has no {answer.missing}: expected one with Heat's library; "
                '"pip install gantt[heat]" installs it, or name another Python with --python',
            )
        if answer.heat is None:
            raise self._failure(template, 'did not start as expected')
        self.notes = [
            f'read by openstack-heat {answer.heat}, '
            f'{_NETWORKS.get(answer.network, "with a network of an unknown kind")}'
        ]

    def _answer(self, template: str, line: bytes) -> _Answer:
        """Send a line and return the next one.  :raises InvalidMessage: names the template"""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        is_late = threading.Event()

        def kill() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(self._seconds, kill)
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            text = process.stdout.readline(ANSWER_BYTES_MAX)
        except BrokenPipeError:
            text = b''
        finally:
            timer.cancel()
        if is_late.is_set():
            raise self._failure(template, f'did not answer within {self._seconds:g} s')
        if not text:
            code = process.wait()
            ended = f'was ended by signal {-code}' if code < 0 else f'ended with {code}'
            raise self._failure(template, f'{ended} before it answered')
        if not text.endswith(b'\n'):
            raise self._failure(template, f'answered more than {ANSWER_BYTES_MAX:,} bytes')
        try:
            return msgspec.json.decode(text, type=_Answer)
        except msgspec.DecodeError:
            raise self._failure(template, 'answered something else than expected') from None

    def _failure(self, template: str, problem: str) -> exceptions.InvalidMessage:
        """Return an error about the child, which is ended."""
        self._end()
        return exceptions.invalid(template, f'the process that reads it {problem}')

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def convert(source: TemplateSource) -> ImportedGroup:
    """Return the group that a template is to make.

    :raises InvalidMessage: names the resource and what was expected there
    """
    if source.path == '-':
        raise exceptions.invalid('FILE', 'expected a file: templates name others by their place')
    with HeatLibrary(source.python) as library:
        expanded = library.read(source.path, source.environments, source.parameters)
        return convert_expanded(expanded, source.flavors, where=source.path, notes=library.notes)


def convert_expanded(
    expanded: _Expanded, flavors: Flavors, *, where: str, notes: list[str] | None = None
) -> ImportedGroup:
    """Return the group of an expanded template.

    :param where: the template, for errors about it as a whole
    :raises InvalidMessage: names the resource and what was expected there
    """
    if not expanded.servers:
        raise exceptions.invalid(where, 'expected a server that is to be created; there is none')
    groups = {_address(group.path) for group in expanded.groups}
    return import_group(
        [_server(server, groups, flavors) for server in expanded.servers],
        [_server_group(group) for group in expanded.groups],
        where=where,
        left_out=[f'{_address(other.path)}: {other.problem}' for other in expanded.others],
        notes=notes or [],
    )


def _server(server: _Server, groups: set[str], flavors: Flavors) -> TemplateServer:
    address = _address(server.path)
    return TemplateServer(
        address=address,
        resource=tuple(step for step in server.path if isinstance(step, str)),
        name=_plain_name([step for step in server.path if isinstance(step, str)]),
        own_name=_plain_name(server.path),
        spec=_spec(server, address, flavors),
        group=_group_of(server, address, groups),
        fields=_fields(server.metadata, address),
    )


def _group_of(server: _Server, address: str, groups: set[str]) -> str | None:
    if server.group is None:
        return None
    group = _address(server.group) if isinstance(server.group, list) else server.group
    if not isinstance(server.group, list) or group not in groups:
        raise exceptions.invalid(
            f'{address}.scheduler_hints.group',
            f'{group} is not made by this template; expected a reference to a server group of it',
        )
    return group


def _spec(server: _Server, address: str, flavors: Flavors) -> dict[str, Any]:
    """Return the spec of a member.  :raises InvalidMessage:"""
    flavor = flavors.get(server.flavor or '')
    if flavor is None:
        raise exceptions.invalid(f'{address}.flavor', f'{server.flavor!r} is not among the flavors')
    image = {'uuid': server.image} if _is_uuid(server.image) else {}
    needs = nova_flavor.needs_of(flavor, image, volume=server.volume_backed)
    spec = {field: value for field, value in needs.items() if value}
    zone = server.availability_zone
    if zone:
        if ':' in zone:
            raise exceptions.invalid(
                f'{address}.availability_zone',
                f'expected a zone without a host, which the plan is to choose; got {zone!r}',
            )
        spec['availability_zone'] = zone
    hints = {
        name: _texts(value, f'{address}.scheduler_hints.{name}')
        for name, value in server.hints.items()
        if name not in HINTS_OF_CREATES and value not in (None, [], '')
    }
    return spec | ({'hints': hints} if hints else {})


def _texts(value: Any, where: str) -> list[str]:
    """Return the value of a hint; an object is a function that Heat does not know, or no hint."""
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, (dict, list)) for text in texts):
        raise exceptions.invalid(
            where, 'expected text or a list of text; a function of another version is neither'
        )
    return [str(text) for text in texts]


def _fields(metadata: Any, address: str) -> dict[str, Any]:
    return {} if metadata is None else metadata_fields(metadata, f'{address}.metadata.gantt')


def _server_group(group: _Group) -> TemplateGroup:
    address = _address(group.path)
    fields = _fields(group.metadata, address)
    if set(fields) - {'policies'}:
        raise exceptions.invalid(
            f'{address}.metadata.gantt', f'expected policies alone; got {", ".join(fields)}'
        )
    most = (group.rules or {}).get('max_server_per_host')
    if most is not None:
        most = base.decode(most, int, inside=f'{address}.rules.max_server_per_host')
    return TemplateGroup(
        address=address,
        name=_plain_name(group.path),
        policies=group.policies,
        max_per_host=most,
        more_policies=fields.get('policies', []),
    )


def _address(path: Path) -> str:
    return '.'.join(map(str, path))


def _plain_name(path: Path) -> str:
    return '-'.join(map(str, path))


def _is_uuid(text: str | None) -> bool:
    try:
        return text is not None and str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
