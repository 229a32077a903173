# SPDX-License-Identifier: Apache-2.0
"""The facts that conditions may be about: their names, their types, where they stand.

Those of a host are columns of the host table; those of the request are the same for
every host, so that an operator's rule may depend on who asks for what.
"""

import enum
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gantt.core.messages import resource_classes
from gantt.core.messages.near import near
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import RequestSpec
from gantt.core.nova import facts
from gantt.core.resources.host import Aggregate
from gantt.core.rules import values
from gantt.core.rules.columns import Coded, Column, Members, Numbers, Same, Sets, coded
from gantt.core.rules.values import Values
from gantt.core.table import metric_values
from gantt.core.table.columns import IntArray

if TYPE_CHECKING:
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
    read: Callable[['HostTable', RequestSpec, str, Rows], Column | Values]
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


def _count(hosts: 'HostTable', rows: Rows) -> int:
    return len(hosts) if rows is None else len(rows)


def _number(column: str) -> Any:
    def read(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
        return Numbers(_at(getattr(hosts, column), rows))

    return read


def _of_class(column: str) -> Any:
    def read(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
        code = hosts.class_code(key)
        if code is None:
            return Numbers(np.zeros(_count(hosts, rows), np.int64))
        if column == 'free':
            return Numbers(_at(hosts.free_of(code), rows))
        if column == 'physical':
            taken = hosts.cap_of(code) - hosts.free_of(code)
            return Numbers(_at(hosts.total[code] - hosts.reserved[code] - taken, rows))
        return Numbers(_at(getattr(hosts, column)[code], rows))

    return read


def _metric(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    found = metric_values.values(hosts, key)
    if found is None:
        found = np.full(len(hosts), np.nan)
    found = _at(found, rows)
    return Numbers(found, ~np.isnan(found))


def _age(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    reported = _at(hosts.reported_at, rows)
    return Numbers(np.maximum(hosts.now - reported, 0.0), reported != 0)


def _guests(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    return Numbers(_at(facts.instance_counts(hosts), rows))


def _failed_builds(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    return Numbers(_at(facts.failed_builds(hosts), rows))


def _hypervisor_version(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    values = _at(hosts.hypervisor_version, rows)
    return Numbers(values, values != 0)


def _zone(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Coded:
    return Coded(_at(hosts.zone, rows), [n or hosts.default_zone for n in hosts.zones.names])


def _cell(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Coded:
    return Coded(_at(hosts.cell, rows), hosts.cells.names)


def _location(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Coded:
    return Coded(_at(hosts.location, rows), hosts.locations.names)


def _names(column: str) -> Any:
    def read(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Coded:
        names = getattr(hosts, column)
        return Coded(np.arange(len(names)) if rows is None else rows, names)

    return read


def _by_host(field: str) -> Any:
    def read(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Coded:
        of = hosts.hosts if rows is None else [hosts.hosts[int(row)] for row in rows]
        return coded(getattr(host.facts.hypervisor, field) for host in of)

    return read


def _platform(get: Callable[[Hypervisor, str], str]) -> Any:
    def read(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Coded:
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


def _cpu_features(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Sets:
    found = [_cpu(platform, 'features') for platform in hosts.platforms.values]
    return Sets(
        _at(hosts.platform, rows),
        [[f for f in of if isinstance(f, str)] if isinstance(of, list) else [] for of in found],
    )


def _traits(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Members:
    bits = hosts.traits if rows is None else hosts.traits.take(rows, axis=1)
    return Members(bits, list(enumerate(hosts.trait_codes.names)))


def _aggregates(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Members:
    bits = hosts.aggregates if rows is None else hosts.aggregates.take(rows, axis=1)
    texts = [(code, uuid) for code, uuid in enumerate(hosts.aggregate_codes.names)]
    texts += _by_aggregate(hosts, lambda a: a.name)
    return Members(bits, texts)


def _metadata(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Members:
    bits = hosts.aggregates if rows is None else hosts.aggregates.take(rows, axis=1)
    return Members(bits, _by_aggregate(hosts, lambda a: a.metadata.get(key)))


def _listed(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Members:
    found = _metadata(hosts, spec, key, rows)
    return Members(
        found.bits, [(code, part.strip()) for code, text in found.texts for part in text.split(',')]
    )


def _by_aggregate(
    hosts: 'HostTable', get: Callable[[Aggregate], str | None]
) -> list[tuple[int, str]]:
    found = []
    for uuid, aggregate in hosts.known_aggregates.items():
        code, text = hosts.aggregate_codes.get(uuid), get(aggregate)
        if code is not None and text is not None:
            found.append((code, text))
    return found


# -- of the request ------------------------------------------------------------------


def _asked_text(get: Callable[[RequestSpec], str | None]) -> Any:
    def read(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Coded:
        return Coded(np.zeros(_count(hosts, rows), np.int64), [get(spec) or ''])

    return read


def _asked_texts(get: Callable[[RequestSpec, str], list[str]]) -> Any:
    def read(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Same:
        return Same(get(spec, key), _count(hosts, rows))

    return read


def _asked_amount(hosts: 'HostTable', spec: RequestSpec, key: str, rows: Rows) -> Numbers:
    return Numbers(np.full(_count(hosts, rows), spec.resources.get(key, 0), np.int64))


def _one(found: dict[str, str], key: str) -> list[str]:
    return [found[key]] if key in found else []


#: Columns of what goes by Nova's names.
_NOVA = (
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
    'hypervisor_version',
)

_ALL = (
    Fact('name', Kind.TEXT, 'name of the service host', _names('names'), reads=('names',)),
    Fact('node', Kind.TEXT, 'name of the hypervisor host', _names('nodes'), reads=('nodes',)),
    Fact('cell', Kind.TEXT, 'uuid of its cell', _cell, reads=('cell',)),
    Fact('zone', Kind.TEXT, 'availability zone', _zone, reads=('zone',)),
    Fact(
        'location',
        Kind.PATH,
        'place in the topology, e.g. site1.room2.rack3.host4',
        _location,
        reads=('location',),
    ),
    Fact(
        'enabled',
        Kind.BOOL,
        'neither the operator nor the service has disabled it',
        _number('enabled'),
        reads=('enabled',),
    ),
    Fact(
        'over_committed',
        Kind.BOOL,
        'found with more use than capacity',
        _number('over_committed'),
        reads=('over_committed',),
    ),
    Fact('age', Kind.NUMBER, 'seconds since its last report', _age, reads=('reported_at',)),
    Fact(
        'instances',
        Kind.NUMBER,
        'how many claims are live there',
        _number('instances'),
        reads=('instances',),
    ),
    Fact(
        'guests',
        Kind.NUMBER,
        'claims that are live there, or guests that it counts itself if these are more',
        _guests,
        reads=('instances', 'metrics', 'placed'),
    ),
    Fact(
        'failed_builds',
        Kind.NUMBER,
        'builds that failed there lately, as it reports',
        _failed_builds,
        reads=('metrics',),
    ),
    Fact(
        'io_ops',
        Kind.NUMBER,
        'how many guests are being built, moved or copied there',
        _number('io_ops'),
        reads=('io_ops',),
    ),
    Fact(
        'free_devices',
        Kind.NUMBER,
        'how many devices are free',
        _number('free_devices'),
        reads=('free_devices',),
    ),
    Fact(
        'cap',
        Kind.NUMBER,
        'how much of a resource class may be promised',
        _of_class('cap'),
        'CLASS',
        ('cap',),
    ),
    Fact(
        'used',
        Kind.NUMBER,
        'how much of a class claims have taken',
        _of_class('used'),
        'CLASS',
        ('used',),
    ),
    Fact(
        'free',
        Kind.NUMBER,
        'how much of a class is left',
        _of_class('free'),
        'CLASS',
        ('free',),
    ),
    Fact(
        'total',
        Kind.NUMBER,
        'how much of a class there is, reserved and all',
        _of_class('total'),
        'CLASS',
        ('total',),
    ),
    Fact(
        'reserved',
        Kind.NUMBER,
        'how much of it the host keeps for itself',
        _of_class('reserved'),
        'CLASS',
        ('reserved',),
    ),
    Fact(
        'ratio',
        Kind.NUMBER,
        'how often the rest may be promised',
        _of_class('ratio'),
        'CLASS',
        ('ratio',),
    ),
    Fact(
        'physical',
        Kind.NUMBER,
        'how much of a class is left without promising any of it twice',
        _of_class('physical'),
        'CLASS',
        ('total', 'reserved', 'cap', 'free'),
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
    Fact(
        'hypervisor.type',
        Kind.TEXT,
        'what runs the guests',
        _platform(lambda h, key: h.type),
        reads=('hypervisor',),
    ),
    Fact(
        'hypervisor.version',
        Kind.VERSION,
        'and its version',
        _hypervisor_version,
        reads=('hypervisor_version',),
    ),
    Fact(
        'hypervisor.hostname',
        Kind.TEXT,
        'host name that it has of itself',
        _by_host('hostname'),
        reads=('hypervisor',),
    ),
    Fact(
        'hypervisor.host_ip', Kind.TEXT, 'its address', _by_host('host_ip'), reads=('hypervisor',)
    ),
    Fact(
        'cpu.arch',
        Kind.TEXT,
        'architecture of its processors',
        _cpu_text('arch'),
        reads=('hypervisor',),
    ),
    Fact('cpu.model', Kind.TEXT, 'their model', _cpu_text('model'), reads=('hypervisor',)),
    Fact('cpu.vendor', Kind.TEXT, 'their vendor', _cpu_text('vendor'), reads=('hypervisor',)),
    Fact('cpu.features', Kind.SET, 'what they can do', _cpu_features, reads=('hypervisor',)),
    Fact(
        'stats',
        Kind.TEXT,
        'other things that its driver says of it',
        _platform(lambda h, key: h.stats.get(key, '')),
        'KEY',
        ('hypervisor',),
    ),
    Fact(
        'nova',
        Kind.VALUE,
        'what ``$PATH`` is in a query of JsonFilter',
        values.of_query,
        'PATH',
        _NOVA,
        values.reads_of_query,
    ),
    Fact(
        'capabilities',
        Kind.WORD,
        'what ``capabilities:PATH`` is in an extra spec; a list contains its members',
        values.of_extra_spec,
        'PATH',
        _NOVA,
        values.reads_of_extra_spec,
    ),
    Fact(
        'capabilities_printed',
        Kind.WORD,
        'the same; a list is the text that Python prints',
        values.of_extra_spec_whole,
        'PATH',
        _NOVA,
        values.reads_of_extra_spec,
    ),
    Fact(
        'request.resources',
        Kind.NUMBER,
        'how much of a class each member needs',
        _asked_amount,
        'CLASS',
    ),
    Fact('request.project', Kind.TEXT, 'project that asks', _asked_text(lambda s: s.project_id)),
    Fact('request.user', Kind.TEXT, 'user who asks', _asked_text(lambda s: s.user_id)),
    Fact(
        'request.purpose',
        Kind.TEXT,
        'create, resize, migrate, live_migrate, evacuate, unshelve or rebuild',
        _asked_text(lambda s: s.purpose.value),
    ),
    Fact('request.type', Kind.TEXT, 'type of the consumer', _asked_text(lambda s: s.consumer_type)),
    Fact(
        'request.zone',
        Kind.TEXT,
        'availability zone that is asked for',
        _asked_text(lambda s: s.availability_zone),
    ),
    Fact('request.flavor', Kind.TEXT, 'name of the flavor', _asked_text(lambda s: s.flavor.name)),
    Fact('request.image', Kind.TEXT, 'uuid of the image', _asked_text(lambda s: s.image.uuid)),
    Fact(
        'request.traits',
        Kind.SET,
        'traits that are required',
        _asked_texts(lambda s, key: s.required_traits),
    ),
    Fact(
        'request.extra_specs',
        Kind.SET,
        'value of an extra spec of the flavor',
        _asked_texts(lambda s, key: _one(s.flavor.extra_specs, key)),
        'KEY',
    ),
    Fact(
        'request.properties',
        Kind.SET,
        'value of a property of the image',
        _asked_texts(lambda s, key: _one(s.image.properties, key)),
        'KEY',
    ),
    Fact(
        'request.hints',
        Kind.SET,
        'values of a hint',
        _asked_texts(lambda s, key: s.hints.get(key, [])),
        'KEY',
    ),
)

FACTS: dict[str, Fact] = {fact.name: fact for fact in _ALL}
_SHOWN = {fact.name: fact.shown for fact in _ALL}
