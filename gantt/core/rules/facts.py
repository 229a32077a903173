# SPDX-License-Identifier: Apache-2.0
"""The facts of conditions: their names, their types, and the columns that they are read from.

Facts of a host are columns of the host table; facts of the request are the same for
every host, so that an operator's rule may depend on the request and its caller.
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

#: Rows to evaluate; None: all.
Rows = IntArray | None


class FactView(msgspec.Struct, frozen=True):
    """The hosts whose facts are read, and the request for which they are read."""

    hosts: HostTable
    spec: RequestSpec
    rows: Rows = None

    def __len__(self) -> int:
        return len(self.hosts) if self.rows is None else len(self.rows)

    def at(self, array: np.ndarray) -> np.ndarray:
        """Return the values of a column, or of one with several lines, for these hosts."""
        return array if self.rows is None else array.take(self.rows, axis=-1)


class Kind(enum.StrEnum):
    """Types of facts."""

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
    """A fact, or a family of facts distinguished by a key.

    :ivar key: placeholder of the key that follows the name after a dot, '' for no key
    :ivar reads: columns of the host table
    :ivar reads_of: returns the columns that one key reads, if fewer; None: all of them
    """

    name: str
    kind: Kind
    help: str
    read: Callable[[FactView, str], Column]
    key: str = ''
    reads: tuple[str, ...] = ()
    reads_of: Callable[[str], tuple[str, ...] | None] | None = None

    def columns(self, key: str) -> tuple[str, ...]:
        """Return the columns that the fact with this key is read from."""
        columns_of_key = None if self.reads_of is None else self.reads_of(key)
        return self.reads if columns_of_key is None else columns_of_key

    @property
    def of_request(self) -> bool:
        """True where the fact is the same for every host."""
        return self.name.startswith('request.')

    @property
    def shown(self) -> str:
        """Name with the placeholder of its key, as in a rule."""
        return f'{self.name}.{self.key}' if self.key else self.name


class UnknownValue(Exception):
    """No fact of that name; the message names the nearest one."""


def resolve(name: str) -> tuple[Fact, str]:
    """Return a fact by its name in a rule, and its key.

    :raises UnknownValue: names the nearest one
    """
    parts = name.split('.')
    for count in range(len(parts), 0, -1):
        fact = FACTS.get('.'.join(parts[:count]))
        if fact is None:
            continue
        key = '.'.join(parts[count:])
        if bool(key) == bool(fact.key):
            if fact.key == 'CLASS' and not resource_classes.is_class_name(key):
                raise UnknownValue(f'there is no resource class {key}; {_near_class(key)}')
            return fact, key
        if fact.key:
            raise UnknownValue(f'expected {fact.shown}, got {name}')
        raise UnknownValue(f'{fact.name} has no {key!r}; expected {fact.name} alone')
    meant = near(name, _SHOWN, 1) or near(parts[0], _SHOWN, 1)
    hint = f'did you mean {_SHOWN[meant[0]]}?' if meant else f'known: {", ".join(FACTS)}'
    raise UnknownValue(f'there is no fact {name}; {hint}')


def _near_class(name: str) -> str:
    meant = near(name, sorted(resource_classes.STANDARD), 1)
    if meant:
        return f'did you mean {meant[0]}?'
    return f'expected CUSTOM_… or one of {", ".join(sorted(resource_classes.STANDARD))}'


# -- of a host ---------------------------------------------------------------------


def _metric(view: FactView, key: str) -> Numbers:
    measured = metric_values.values(view.hosts, key)
    values = view.at(np.full(len(view.hosts), np.nan) if measured is None else measured)
    return Numbers(values, ~np.isnan(values))


def _age(view: FactView, key: str) -> Numbers:
    reported = view.at(view.hosts.reported_at)
    return Numbers(np.maximum(view.hosts.now - reported, 0.0), reported != 0)


def _hypervisor_version(view: FactView, key: str) -> Numbers:
    values = view.at(view.hosts.hypervisor_version)
    return Numbers(values, values != 0)


def _zone(view: FactView, key: str) -> Coded:
    names = [name or view.hosts.default_zone for name in view.hosts.zones.names]
    return Coded(view.at(view.hosts.zone), names)


def _by_host(field: str) -> Any:
    def read(view: FactView, key: str) -> Coded:
        rows = range(len(view)) if view.rows is None else view.rows.tolist()
        return coded(getattr(view.hosts.hosts[row].facts.hypervisor, field) for row in rows)

    return read


def _platform(get: Callable[[Hypervisor, str], str]) -> Any:
    def read(view: FactView, key: str) -> Coded:
        return Coded(view.at(view.hosts.platform), [get(h, key) for h in _platforms(view)])

    return read


def _platforms(view: FactView) -> list[Hypervisor]:
    platforms = view.hosts.platforms.values
    return [platforms[code] for code in range(len(platforms))]


@functools.lru_cache(maxsize=256)
def _decoded(text: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _cpu(hypervisor: Hypervisor, field: str, kind: type) -> Any:
    """Return a reported field of the processors, or an empty value if it has another type."""
    info = hypervisor.cpu_info
    field_value = (_decoded(info) if isinstance(info, str) else info).get(field)
    return field_value if isinstance(field_value, kind) else kind()


def _cpu_features(view: FactView, key: str) -> Sets:
    feature_lists = [_cpu(platform, 'features', list) for platform in _platforms(view)]
    return Sets(
        view.at(view.hosts.platform),
        [[f for f in features if isinstance(f, str)] for features in feature_lists],
    )


def _traits(view: FactView, key: str) -> Members:
    return Members(view.at(view.hosts.traits), list(enumerate(view.hosts.trait_codes.names)))


def _in_aggregates(get: Callable[[Aggregate, str], list[str]], with_uuids: bool = False) -> Any:
    """Return a reader of texts of each host's aggregates."""

    def read(view: FactView, key: str) -> Members:
        codes = view.hosts.aggregate_codes
        texts_by_code: list[tuple[int, str]] = list(enumerate(codes.names)) if with_uuids else []
        for uuid, aggregate in view.hosts.known_aggregates.items():
            code = codes.get(uuid)
            if code is not None:
                texts_by_code += ((code, text) for text in get(aggregate, key))
        return Members(view.at(view.hosts.aggregates), texts_by_code)

    return read


def _listed(aggregate: Aggregate, key: str) -> list[str]:
    return [part.strip() for text in _one(aggregate.metadata, key) for part in text.split(',')]


def _one(texts: Mapping[str, str], key: str) -> list[str]:
    return [texts[key]] if key in texts else []


# -- by the names of Nova's filters ------------------------------------------------------

#: Columns that facts by Nova's names may be read from.
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
) -> list[nova_facts.NovaFact]:
    """Return the facts of hosts at a path, best source first: their attribute, else ``stats``."""
    if path[0] == 'stats' and len(path) > 1:
        return [fact.inside(path[2:]) for fact in nova_facts.stats(hosts, path[1])]
    attribute = nova_facts.fact(hosts, path[0])
    sources = [] if attribute is None else [attribute]
    sources += nova_facts.stats(hosts, path[0]) if with_stats else []
    return [fact.inside(path[1:]) for fact in sources]


def _nova(name: str, kind: Kind, help: str, sign: str, with_stats: bool) -> Fact:
    """Return a family of facts by their names in Nova.

    :param sign: separator of the parts of a path
    """

    def path_of(key: str) -> list[str]:
        return key.split(sign) if with_stats else key.split(sign, nova_facts.STEPS_MAX)

    def read(view: FactView, key: str) -> Values:
        sources, rows = capability(view.hosts, path_of(key), with_stats), view.rows
        return Values(sources if rows is None else [f.of_rows(rows) for f in sources], len(view))

    def reads_of(key: str) -> tuple[str, ...] | None:
        path = path_of(key)
        if path[0] == 'stats' and len(path) > 1:
            return nova_facts.STATS_READ
        columns_read = nova_facts.reads_of(path[0])
        return (
            columns_read
            if columns_read is None or not with_stats
            else (*columns_read, *nova_facts.STATS_READ)
        )

    return Fact(name, kind, help, read, 'PATH', (*NOVA_COLUMNS, 'hypervisor_version'), reads_of)


# -- all of them ---------------------------------------------------------------------------


def _of_column(
    name: str,
    help: str,
    kind: Kind = Kind.NUMBER,
    get: Callable[[HostTable], np.ndarray] | None = None,
    reads: tuple[str, ...] = (),
) -> Fact:
    """Return a fact of numbers by row: a column under its own name, or computed from columns."""

    def read(view: FactView, key: str) -> Numbers:
        return Numbers(view.at(getattr(view.hosts, name) if get is None else get(view.hosts)))

    return Fact(name, kind, help, read, reads=reads or (name,))


def _of_class(name: str, help: str, *reads: str) -> Fact:
    """Return a fact that is an amount of a resource class."""

    def read(view: FactView, key: str) -> Numbers:
        code = view.hosts.class_code(key)
        if code is None:
            return Numbers(np.zeros(len(view), np.int64))
        if name == 'physical':
            return Numbers(view.at(nova_facts.free_amount(view.hosts, key)))
        return Numbers(view.at(getattr(view.hosts, name)[code]))

    return Fact(name, Kind.NUMBER, help, read, 'CLASS', reads or (name,))


def _text(name: str, help: str, codes: str, names: str, kind: Kind = Kind.TEXT) -> Fact:
    """Return a fact that is a column of texts, by code or one by one."""

    def read(view: FactView, key: str) -> Coded:
        texts = getattr(view.hosts, names)
        if codes == names:
            return Coded(np.arange(len(texts)) if view.rows is None else view.rows, texts)
        return Coded(view.at(getattr(view.hosts, codes)), texts.names)

    return Fact(name, kind, help, read, reads=(codes,))


def _of_hypervisor(name: str, help: str, read: Any, key: str = '', kind: Kind = Kind.TEXT) -> Fact:
    return Fact(name, kind, help, read, key, ('hypervisor',))


def _of_request(name: str, help: str, get: Callable[[RequestSpec], str | None]) -> Fact:
    """Return a fact that is a text of the request, the same for every host."""

    def read(view: FactView, key: str) -> Coded:
        return Coded(np.zeros(len(view), np.int64), [get(view.spec) or ''])

    return Fact(f'request.{name}', Kind.TEXT, help, read)


def _set_of_request(
    name: str, help: str, get: Callable[[RequestSpec, str], list[str]], key: str = ''
) -> Fact:
    def read(view: FactView, key: str) -> Sets:
        return Sets(np.zeros(len(view), np.int64), [get(view.spec, key)])

    return Fact(f'request.{name}', Kind.SET, help, read, key)


def _amount_of_request(view: FactView, key: str) -> Numbers:
    return Numbers(np.full(len(view), view.spec.resources.get(key, 0), np.int64))


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
        'total',
        'reserved',
        'cap',
        'free',
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
        _in_aggregates(lambda a, key: [a.name], with_uuids=True),
        reads=('aggregates',),
    ),
    Fact(
        'metadata',
        Kind.SET,
        'values of a key over all its aggregates',
        _in_aggregates(lambda a, key: _one(a.metadata, key)),
        'KEY',
        ('aggregates',),
    ),
    Fact(
        'metadata_listed',
        Kind.WORDS,
        'the same, taken apart at commas',
        _in_aggregates(_listed),
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
    _of_hypervisor(
        'cpu.arch', 'architecture of its processors', _platform(lambda h, key: _cpu(h, 'arch', str))
    ),
    _of_hypervisor('cpu.model', 'their model', _platform(lambda h, key: _cpu(h, 'model', str))),
    _of_hypervisor('cpu.vendor', 'their vendor', _platform(lambda h, key: _cpu(h, 'vendor', str))),
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
        _amount_of_request,
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
