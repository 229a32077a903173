# SPDX-License-Identifier: Apache-2.0
"""Reports for hosts that another program runs, from a file.

    hosts:
      - name: compute-7              # service host
        node: compute-7.example.org
        uuid: 6d3f8d0e-...
        cell: 5a1b...
        zone: az-2
        aggregates: [rack-4]
        traits: [CUSTOM_SSD]
        inventories: {VCPU: {total: 32, allocation_ratio: 4.0}, MEMORY_MB: 131072}
        running:                     # left out: no opinion, nothing is freed
          - {consumer: 0c5e..., resources: {VCPU: 2}}

Beside ``hosts`` the file may have ``shapes``; a host with ``shape: NAME`` has
what that shape has, and its own entries over it.  The file is read again when
it changes; a change with an error in it is refused whole.
"""

import logging
import os
import random
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings
from gantt.compute.agent.runner import PeriodicTasks, Runner
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Session
from gantt.compute.ports import HostReadings, SchedulerPort
from gantt.compute.shapes import Shape, load_yaml
from gantt.core.messages import base as message
from gantt.core.messages import report as reports
from gantt.core.messages import resource_classes
from gantt.core.messages.base import Amount, Message, Name, Positive, Text, TrimmedName, Uuid
from gantt.core.messages.report import (
    DevicePool,
    HostReport,
    Hypervisor,
    NumaCell,
    RegisterHost,
    ReportedMetric,
    Running,
)
from gantt.core.messages.resource_classes import Inventory

LOG = logging.getLogger(__name__)

FILE_CHECK_SECONDS = 2.0
HOSTS_MAX = 100_000
#: Facts that a host has by its shape where its own entry leaves them out.
_SHAPE_DEFAULT_FIELDS = ('foreign', 'traits', 'aggregates', 'numa', 'devices', 'hypervisor')


class HostEntry(Message, frozen=True, kw_only=True):
    """One host of the file; a field left out has the value of its shape, or is not reported."""

    name: TrimmedName
    node: TrimmedName | None = None
    uuid: Uuid | None = None
    cell: Uuid | None = None
    zone: TrimmedName | None = None
    location: Text = ''
    shape: Name | None = None
    inventories: dict[TrimmedName, Inventory | Positive] = {}
    foreign: dict[TrimmedName, Amount] | UnsetType = UNSET
    used: dict[TrimmedName, Amount] | UnsetType = UNSET
    traits: Annotated[list[TrimmedName], msgspec.Meta(max_length=2000)] | UnsetType = UNSET
    aggregates: Annotated[list[TrimmedName], msgspec.Meta(max_length=500)] | UnsetType = UNSET
    numa: list[NumaCell] | UnsetType = UNSET
    devices: list[DevicePool] | UnsetType = UNSET
    hypervisor: Hypervisor | UnsetType = UNSET
    metrics: dict[Name, ReportedMetric] = {}
    disabled: Text | None = None
    running: list[Running] | None = None


class HostDeclaration(msgspec.Struct, frozen=True):
    """One host of the file as it is reported: registration, facts and running guests."""

    announcement: RegisterHost
    facts: HostReadings
    running: list[Running] | None


def load(path: str) -> dict[str, HostDeclaration]:
    """Read a file; return host name -> its declaration.

    :raises Misconfigured: the file cannot be read, or is no YAML
    :raises InvalidMessage: names file, entry and field
    """
    content = load_yaml(path, '--report-only')
    if not isinstance(content, dict):
        raise exceptions.invalid(path, 'expected an object with the key hosts, and perhaps shapes')
    strange_keys = content.keys() - {'hosts', 'shapes'}
    if strange_keys:
        listed = ', '.join(sorted(map(str, strange_keys)))
        raise exceptions.invalid(
            path, f'expected no other keys than hosts and shapes; got {listed}'
        )
    shapes = {
        shape.name: shape
        for index, body in enumerate(_list(path, content, 'shapes'))
        for shape in [message.decode(body, Shape, inside=f'{path}: shapes[{index}]')]
    }
    declarations: dict[str, HostDeclaration] = {}
    for index, body in enumerate(_list(path, content, 'hosts')):
        name = body.get('name') if isinstance(body, dict) else None
        inside = f'{path}: hosts[{index}]' + (f' ({name})' if isinstance(name, str) else '')
        entry = message.decode(body, HostEntry, inside=inside)
        if entry.name in declarations:
            raise exceptions.invalid(
                f'{inside}.name', f'expected each host once; got {entry.name!r} twice'
            )
        declarations[entry.name] = _declaration(entry, shapes, inside)
    if not declarations:
        raise exceptions.invalid(f'{path}: hosts', 'expected at least one')
    return declarations


def _list(path: str, content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key) or []
    if not isinstance(value, list) or len(value) > HOSTS_MAX:
        raise exceptions.invalid(f'{path}: {key}', f'expected a list of at most {HOSTS_MAX}')
    return value


def _declaration(entry: HostEntry, shapes: dict[str, Shape], inside: str) -> HostDeclaration:
    base = None
    if entry.shape is not None:
        if entry.shape not in shapes:
            names = ', '.join(sorted(shapes)) or 'none'
            raise exceptions.invalid(
                f'{inside}.shape',
                f'expected one of the shapes of this file ({names}); got {entry.shape!r}',
            )
        base = shapes[entry.shape].facts(entry.name, entry.zone)
    facts = _facts(entry, base, inside)
    announcement = RegisterHost(
        name=entry.name,
        node=entry.node or entry.name,
        uuid=entry.uuid,
        boot_nonce='-',
        cell=entry.cell,
        zone=entry.zone,
        reporter=None if entry.running is None else 'host',
    )
    _check(entry, facts, inside)
    return HostDeclaration(announcement, facts, entry.running)


def _facts(entry: HostEntry, shape: HostReadings | None, inside: str) -> HostReadings:
    base = shape or HostReadings(inventories={})
    inventories = base.inventories | {
        name: declared if isinstance(declared, Inventory) else Inventory(total=declared)
        for name, declared in entry.inventories.items()
    }
    if not inventories:
        raise exceptions.invalid(f'{inside}.inventories', 'expected at least one class, or a shape')
    overrides = {
        field: declared
        for field in _SHAPE_DEFAULT_FIELDS
        if (declared := getattr(entry, field)) is not UNSET
    }
    if entry.used is not UNSET:
        overrides['foreign'] = UNSET
    return msgspec.structs.replace(
        base,
        inventories=inventories,
        used=entry.used,
        node=entry.node or entry.name,
        cell=entry.cell,
        zone=entry.zone,
        location=entry.location,
        metrics=entry.metrics,
        disabled=entry.disabled,
        **overrides,
    )


def _check(entry: HostEntry, facts: HostReadings, inside: str) -> None:
    """Check a host's facts as the scheduler will check them in its report."""
    if entry.used is not UNSET and entry.foreign is not UNSET:
        raise exceptions.invalid(
            f'{inside}.used', 'expected only one of foreign and used; got both'
        )
    custom = {name for name in facts.inventories if resource_classes.CUSTOM_CLASS_NAME.match(name)}
    try:
        reports.check(
            HostReport(
                name=entry.name,
                epoch=1,
                sequence=1,
                full=True,
                running=entry.running,
                pending=None if entry.running is None else [],
                inventories=facts.inventories,
                foreign=facts.foreign,
                used=facts.used,
            ),
            frozenset(custom),
        )
    except exceptions.UnknownResourceClass as e:
        field = str(e.kwargs['field']).removeprefix('stats')
        raise exceptions.UnknownResourceClass(
            field=f'{inside}{field}', name=e.kwargs['name']
        ) from None
    except exceptions.InvalidMessage as e:
        field = str(e.kwargs['field']).removeprefix('stats')
        raise exceptions.invalid(f'{inside}{field}', str(e.kwargs['problem'])) from None


class ReportOnly(PeriodicTasks):
    """A watcher of the file that has its hosts report; takes turns like a host.

    :raises Misconfigured, InvalidMessage: the file is wrong at the start
    """

    def __init__(
        self,
        path: str,
        port: SchedulerPort,
        runner: Runner,
        settings: HostAgentSettings | None = None,
    ) -> None:
        self.name = f'--report-only {path}'
        self._path = path
        self._port = port
        self._runner = runner
        self._settings = settings or HostAgentSettings()
        self._seen = self._file_stamp()
        self._declaration = load(path)
        self._host_agents: dict[str, HostAgent] = {}

    @property
    def host_agents(self) -> dict[str, HostAgent]:
        """Host name -> its agent."""
        return self._host_agents

    def start(self) -> None:
        """Let every host of the file report, now and whenever the file changes."""
        self._apply_declared(self._declaration)
        self._runner.add(self, FILE_CHECK_SECONDS)

    def turn(self) -> float:
        """Read the file if it changed; return the seconds until the next turn."""
        mark = self._file_stamp()
        if mark != self._seen:
            self._seen = mark
            try:
                declared = load(self._path)
            except (exceptions.Misconfigured, exceptions.Refused) as e:
                LOG.error('File of hosts is refused; the last one stays in force: error=%s', e)
            else:
                self._apply_declared(declared)
        return FILE_CHECK_SECONDS

    def _apply_declared(self, declared: dict[str, HostDeclaration]) -> None:
        old_declarations, self._declaration = self._declaration, declared
        for name in self._host_agents.keys() - declared.keys():
            LOG.warning('Host is no longer in the file and is not reported any more: host=%s', name)
            self._runner.remove(self._host_agents.pop(name))
        for name, declaration in declared.items():
            old_declaration = old_declarations.get(name)
            if name in self._host_agents and old_declaration is not None:
                if old_declaration.announcement == declaration.announcement:
                    if old_declaration != declaration:
                        self._host_agents[name].run_within(self._settings.change_seconds)
                    continue
                self._runner.remove(self._host_agents.pop(name))
            self._add(name, declaration)

    def _add(self, name: str, declared: HostDeclaration) -> None:
        def look() -> tuple[GuestInventory, HostReadings]:
            declaration = self._declaration.get(name, declared)
            pending: list[Running] | None = None if declaration.running is None else []
            return GuestInventory(declaration.running, pending), declaration.facts

        session = Session(declared.announcement, self._port)
        rng = random.Random(name)
        member = HostAgent(session, self._port, look, self._settings, rng)
        self._host_agents[name] = member
        self._runner.add(member)

    def _file_stamp(self) -> tuple[int, int, int]:
        """Return the file's identity, time and size, which change whenever it is written."""
        try:
            status = os.stat(self._path)
        except OSError:
            return (0, 0, 0)
        return (status.st_ino, status.st_size, status.st_mtime_ns)
