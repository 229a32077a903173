# SPDX-License-Identifier: Apache-2.0
"""The facts that conditions may be about: their names, their types, where they stand.

Those of a host are columns of the host table; those of the request are the same for
every host, so that an operator's rule may depend on who asks for what.
"""

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from gantt.core.messages import resource_classes
from gantt.core.messages.near import near
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import RequestSpec
from gantt.core.nova import facts as nova_facts
from gantt.core.resources.host import Aggregate
from gantt.core.rules.columns import Coded, Column, Members, Numbers, Sets, Values, coded
from gantt.core.table import metric_values
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable

#: Rows to look at; None: all of them.
Rows = IntArray | None


class Kind(enum.StrEnum):
    """What a fact is."""

    NUMBER = 'number'
    TEXT = 'text'
    BOOL = 'yes or no'
    VERSION = 'version'
    PATH = 'path'
    SET = 'set of texts'
    VALUE = 'value of any type'
    WORD = 'text or number'
    WORDS = 'set of texts or numbers'


class Fact(msgspec.Struct, frozen=True):
    """One fact, or a family of them told apart by a key.

    :ivar key: what follows the name after a dot, '' for nothing
    :ivar reads: columns of the host table
    :ivar reads_of: those that one key reads, where they are fewer; None: all of them
    """

    name: str
    kind: Kind
    help: str
    read: Callable[[HostTable, RequestSpec, str, Rows], Column]
    key: str = ''
    reads: tuple[str, ...] = ()
    reads_of: Callable[[str], tuple[str, ...] | None] | None = None

    def columns(self, key: str) -> tuple[str, ...]:
        """Columns that the fact follows from, of this key."""
        found = None if self.reads_of is None else self.reads_of(key)
        return self.reads if found is None else found

    @property
    def of_request(self) -> bool:
        """Whether it is the same for every host."""
        return self.name.startswith('request.')

    @property
    def shown(self) -> str:
        """The name with its key, as it is written."""
        return f'{self.name}.{self.key}' if self.key else self.name


class Unknown(Exception):
    """No fact of that name; says which is nearest."""


def resolve(name: str) -> tuple[Fact, str]:
    """A fact by what stands in a rule, and its key.

    :raises Unknown: names the nearest one
    """
    parts = name.split('.')
    for count in range(len(parts), 0, -1):
        fact = FACTS.get('.'.join(parts[:count]))
        if fact is None:
            continue
        key = '.'.join(parts[count:])
        if bool(key) == bool(fact.key):
            if fact.key == 'CLASS' and not resource_classes.is_class_name(key):
                raise Unknown(f'there is no resource class {key}; {_near_class(key)}')
            return fact, key
        if fact.key:
            raise Unknown(f'expected {fact.shown}, got {name}')
        raise Unknown(f'{fact.name} has no {key!r}; expected {fact.name} alone')
    meant = near(name, _SHOWN, 1) or near(parts[0], _SHOWN, 1)
    hint = f'did you mean {_SHOWN[meant[0]]}?' if meant else f'known: {", ".join(FACTS)}'
    raise Unknown(f'there is no fact {name}; {hint}')


def _near_class(name: str) -> str:
    meant = near(name, sorted(resource_classes.STANDARD), 1)
    if meant:
        return f'did you mean {meant[0]}?'
    return f'expected CUSTOM_… or one of {", ".join(sorted(resource_classes.STANDARD))}'


# -- of a host ---------------------------------------------------------------------


def _at(array: np.ndarray, rows: Rows) -> np.ndarray:
    return array if rows is None else array.take(rows)


def _count(hosts: HostTable, rows: Rows) -> int:
    return len(hosts) if rows is None else len(rows)


def _metric(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    found = metric_values.values(hosts, key)
    if found is None:
        found = np.full(len(hosts), np.nan)
    found = _at(found, rows)
    return Numbers(found, ~np.isnan(found))


def _age(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    reported = _at(hosts.reported_at, rows)
    return Numbers(np.maximum(hosts.now - reported, 0.0), reported != 0)


def _hypervisor_version(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    values = _at(hosts.hypervisor_version, rows)
    return Numbers(values, values != 0)


def _zone(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Coded:
    return Coded(_at(hosts.zone, rows), [n or hosts.default_zone for n in hosts.zones.names])


def _by_host(field: str) -> Any:
    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Coded:
        of = hosts.hosts if rows is None else [hosts.hosts[int(row)] for row in rows]
        return coded(getattr(host.facts.hypervisor, field) for host in of)

    return read


def _platform(get: Callable[[Hypervisor, str], str]) -> Any:
    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Coded:
        codes, known = _at(hosts.platform, rows), hosts.platforms.values
        return Coded(codes, [get(known[c], key) for c in range(len(known))])

    return read


@functools.lru_cache(maxsize=256)
def _decoded(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _cpu(hypervisor: Hypervisor, field: str) -> Any:
    info = hypervisor.cpu_info
    return (_decoded(info) if isinstance(info, str) else info).get(field)


def _cpu_text(field: str) -> Any:
    def get(hypervisor: Hypervisor, key: str) -> str:
        found = _cpu(hypervisor, field)
        return found if isinstance(found, str) else ''

    return _platform(get)


def _cpu_features(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Sets:
    found = [_cpu(platform, 'features') for platform in hosts.platforms.values]
    return Sets(
        _at(hosts.platform, rows),
        [[f for f in of if isinstance(f, str)] if isinstance(of, list) else [] for of in found],
    )


def _traits(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Members:
    bits = hosts.traits if rows is None else hosts.traits.take(rows, axis=1)
    return Members(bits, list(enumerate(hosts.trait_codes.names)))


def _in_aggregates(
    hosts: HostTable, rows: Rows, get: Callable[[Aggregate], list[str]], *more: tuple[int, str]
) -> Members:
    """Texts of each host's aggregates."""
    bits = hosts.aggregates if rows is None else hosts.aggregates.take(rows, axis=1)
    found = list(more)
    for uuid, aggregate in hosts.known_aggregates.items():
        code = hosts.aggregate_codes.get(uuid)
        if code is not None:
            found += ((code, text) for text in get(aggregate))
    return Members(bits, found)


def _aggregates(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Members:
    return _in_aggregates(hosts, rows, lambda a: [a.name], *enumerate(hosts.aggregate_codes.names))


def _metadata(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Members:
    return _in_aggregates(hosts, rows, lambda a: _one(a.metadata, key))


def _listed(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Members:
    return _in_aggregates(
        hosts,
        rows,
        lambda a: [part.strip() for text in _one(a.metadata, key) for part in text.split(',')],
    )


def _one(texts: Mapping[str, str], key: str) -> list[str]:
    return [texts[key]] if key in texts else []


# -- by the names of Nova's filters ------------------------------------------------------

#: Columns that these may follow from.
NOVA_COLUMNS = (
    'platform',
    'metrics',
    'hypervisor',
    'names',
    'nodes',
    'cell',
    'enabled',
    'total',
    'reserved',
    'ratio',
    'cap',
    'free',
    'instances',
    'io_ops',
    'placed',
)


def capability(
    hosts: HostTable, path: Sequence[str], with_stats: bool = True
) -> list[nova_facts.Fact]:
    """What hosts have at a path, best source first: their own attribute, else ``stats``."""
    if path[0] == 'stats' and len(path) > 1:
        return [fact.inside(path[2:]) for fact in nova_facts.stats(hosts, path[1])]
    own = nova_facts.fact(hosts, path[0])
    found = [] if own is None else [own]
    found += nova_facts.stats(hosts, path[0]) if with_stats else []
    return [fact.inside(path[1:]) for fact in found]


def _nova(name: str, kind: Kind, help: str, sign: str, with_stats: bool) -> Fact:
    """A family of facts by their names in Nova.

    :param sign: what leads inside of a structure
    """

    def path_of(key: str) -> list[str]:
        return key.split(sign) if with_stats else key.split(sign, nova_facts.STEPS_MAX)

    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Values:
        found = capability(hosts, path_of(key), with_stats)
        if rows is None:
            return Values(found, len(hosts))
        return Values([fact.of_rows(rows) for fact in found], len(rows))

    def reads_of(key: str) -> tuple[str, ...] | None:
        path = path_of(key)
        if path[0] == 'stats' and len(path) > 1:
            return nova_facts.STATS_READ
        own = nova_facts.reads_of(path[0])
        return own if own is None or not with_stats else (*own, *nova_facts.STATS_READ)

    return Fact(name, kind, help, read, 'PATH', (*NOVA_COLUMNS, 'hypervisor_version'), reads_of)


# -- all of them ---------------------------------------------------------------------------


def _of_column(
    name: str,
    help: str,
    kind: Kind = Kind.NUMBER,
    get: Callable[[HostTable], np.ndarray] | None = None,
    reads: tuple[str, ...] = (),
) -> Fact:
    """Numbers by row: a column under its own name, or what is made of columns."""

    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Numbers:
        return Numbers(_at(getattr(hosts, name) if get is None else get(hosts), rows))

    return Fact(name, kind, help, read, reads=reads or (name,))


def _of_class(name: str, help: str, *reads: str) -> Fact:
    """An amount of a resource class."""

    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Numbers:
        code = hosts.class_code(key)
        if code is None:
            return Numbers(np.zeros(_count(hosts, rows), np.int64))
        if name == 'physical':
            taken = hosts.cap[code] - hosts.free[code]
            return Numbers(_at(hosts.total[code] - hosts.reserved[code] - taken, rows))
        return Numbers(_at(getattr(hosts, name)[code], rows))

    return Fact(name, Kind.NUMBER, help, read, 'CLASS', reads or (name,))


def _text(name: str, help: str, codes: str, names: str, kind: Kind = Kind.TEXT) -> Fact:
    """A column of texts, by code or one by one."""

    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Coded:
        if codes == names:
            texts = getattr(hosts, names)
            return Coded(np.arange(len(texts)) if rows is None else rows, texts)
        return Coded(_at(getattr(hosts, codes), rows), getattr(hosts, names).names)

    return Fact(name, kind, help, read, reads=(codes,))


def _of_hypervisor(name: str, help: str, read: Any, key: str = '', kind: Kind = Kind.TEXT) -> Fact:
    return Fact(name, kind, help, read, key, ('hypervisor',))


def _of_request(name: str, help: str, get: Callable[[RequestSpec], str | None]) -> Fact:
    """A text of the request, the same for every host."""

    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Coded:
        return Coded(np.zeros(_count(hosts, rows), np.int64), [get(spec) or ''])

    return Fact(f'request.{name}', Kind.TEXT, help, read)


def _set_of_request(
    name: str, help: str, get: Callable[[RequestSpec, str], list[str]], key: str = ''
) -> Fact:
    def read(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Sets:
        return Sets(np.zeros(_count(hosts, rows), np.int64), [get(spec, key)])

    return Fact(f'request.{name}', Kind.SET, help, read, key)


def _asked_amount(hosts: HostTable, spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    return Numbers(np.full(_count(hosts, rows), spec.resources.get(key, 0), np.int64))


_ALL = (
    _text('name', 'name of the service host', 'names', 'names'),
    _text('node', 'name of the hypervisor host', 'nodes', 'nodes'),
    _text('cell', 'uuid of its cell', 'cell', 'cells'),
    Fact('zone', Kind.TEXT, 'availability zone', _zone, reads=('zone',)),
    _text(
        'location',
        'place in the topology, e.g. site1.room2.rack3.host4',
        'location',
        'locations',
        Kind.PATH,
    ),
    _of_column('enabled', 'neither the operator nor the service has disabled it', Kind.BOOL),
    _of_column('over_committed', 'found with more use than capacity', Kind.BOOL),
    Fact('age', Kind.NUMBER, 'seconds since its last report', _age, reads=('reported_at',)),
    _of_column('instances', 'how many claims are live there'),
    _of_column(
        'guests',
        'claims that are live there, or guests that it counts itself if these are more',
        get=nova_facts.instance_counts,
        reads=('instances', 'metrics', 'placed'),
    ),
    _of_column(
        'failed_builds',
        'builds that failed there lately, as it reports',
        get=nova_facts.failed_builds,
        reads=('metrics',),
    ),
    _of_column('io_ops', 'how many guests are being built, moved or copied there'),
    _of_column('free_devices', 'how many devices are free'),
    _of_class('cap', 'how much of a resource class may be promised'),
    _of_class('used', 'how much of a class claims have taken'),
    _of_class('free', 'how much of a class is left'),
    _of_class('total', 'how much of a class there is, reserved and all'),
    _of_class('reserved', 'how much of it the host keeps for itself'),
    _of_class('ratio', 'how often the rest may be promised'),
    _of_class(
        'physical',
        'how much of a class is left without promising any of it twice',
        *('total', 'reserved', 'cap', 'free'),
    ),
    Fact(
        'metrics',
        Kind.NUMBER,
        'what the host measured about itself',
        _metric,
        'METRIC',
        ('metrics',),
    ),
    Fact('traits', Kind.SET, 'what it can do', _traits, reads=('traits',)),
    Fact(
        'aggregates',
        Kind.SET,
        'aggregates that it is in, by name and by uuid',
        _aggregates,
        reads=('aggregates',),
    ),
    Fact(
        'metadata',
        Kind.SET,
        'values of a key over all its aggregates',
        _metadata,
        'KEY',
        ('aggregates',),
    ),
    Fact(
        'metadata_listed',
        Kind.WORDS,
        'the same, taken apart at commas',
        _listed,
        'KEY',
        ('aggregates',),
    ),
    _of_hypervisor('hypervisor.type', 'what runs the guests', _platform(lambda h, key: h.type)),
    Fact(
        'hypervisor.version',
        Kind.VERSION,
        'and its version',
        _hypervisor_version,
        reads=('hypervisor_version',),
    ),
    _of_hypervisor('hypervisor.hostname', 'host name that it has of itself', _by_host('hostname')),
    _of_hypervisor('hypervisor.host_ip', 'its address', _by_host('host_ip')),
    _of_hypervisor('cpu.arch', 'architecture of its processors', _cpu_text('arch')),
    _of_hypervisor('cpu.model', 'their model', _cpu_text('model')),
    _of_hypervisor('cpu.vendor', 'their vendor', _cpu_text('vendor')),
    _of_hypervisor('cpu.features', 'what they can do', _cpu_features, kind=Kind.SET),
    _of_hypervisor(
        'stats',
        'other things that its driver says of it',
        _platform(lambda h, key: h.stats.get(key, '')),
        'KEY',
    ),
    _nova('nova', Kind.VALUE, 'what ``$PATH`` is in a query of JsonFilter', '.', False),
    _nova(
        'capabilities',
        Kind.WORD,
        'what ``capabilities:PATH`` is in an extra spec; a list contains its members',
        ':',
        True,
    ),
    _nova(
        'capabilities_printed',
        Kind.WORD,
        'the same; a list is the text that Python prints',
        ':',
        True,
    ),
    Fact(
        'request.resources',
        Kind.NUMBER,
        'how much of a class each member needs',
        _asked_amount,
        'CLASS',
    ),
    _of_request('project', 'project that asks', lambda s: s.project_id),
    _of_request('user', 'user who asks', lambda s: s.user_id),
    _of_request(
        'purpose',
        'create, resize, migrate, live_migrate, evacuate, unshelve or rebuild',
        lambda s: s.purpose.value,
    ),
    _of_request('type', 'type of the consumer', lambda s: s.consumer_type),
    _of_request('zone', 'availability zone that is asked for', lambda s: s.availability_zone),
    _of_request('flavor', 'name of the flavor', lambda s: s.flavor.name),
    _of_request('image', 'uuid of the image', lambda s: s.image.uuid),
    _set_of_request('traits', 'traits that are required', lambda s, key: s.required_traits),
    _set_of_request(
        'extra_specs',
        'value of an extra spec of the flavor',
        lambda s, key: _one(s.flavor.extra_specs, key),
        'KEY',
    ),
    _set_of_request(
        'properties',
        'value of a property of the image',
        lambda s, key: _one(s.image.properties, key),
        'KEY',
    ),
    _set_of_request('hints', 'values of a hint', lambda s, key: s.hints.get(key, []), 'KEY'),
)

FACTS: dict[str, Fact] = {fact.name: fact for fact in _ALL}
_SHOWN = {fact.name: fact.shown for fact in _ALL}
