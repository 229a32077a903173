# SPDX-License-Identifier: Apache-2.0
"""The facts of conditions: their names, their types, and the columns that they are read from.

Facts of a host are columns of the host table; facts of the request are the same for
every host, so that an operator's rule may depend on the request and its caller.

A condition is evaluated once per distinct value of a column and mapped to the hosts by the codes.
A fact that a host does not have is unknown: no condition on it holds, and no opposite of one.
"""

import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from gantt.core.filters.base import has_any
from gantt.core.messages import resource_classes
from gantt.core.messages.near import nearest_names
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import Aggregate
from gantt.core.rules import nova_facts
from gantt.core.rules.nova_facts import NovaFact as NovaFact
from gantt.core.table import metric_values
from gantt.core.table.columns import BoolArray, Codes, IntArray, words_of
from gantt.core.table.host_table import HostTable

#: Returns whether a value meets a condition; None: undecidable for the value.
Predicate = Callable[[Any], bool | None]


class Numbers(msgspec.Struct, frozen=True):
    """A number per host.

    :ivar known: mask of the hosts that have it; None: all
    """

    numbers: np.ndarray
    known: BoolArray | None = None

    def found(self) -> BoolArray:
        """Return a mask of the hosts that have the fact."""
        return np.ones(self.numbers.shape, np.bool_) if self.known is None else self.known.copy()


class _Texts(msgspec.Struct, frozen=True):
    """Base of columns that are not numbers."""

    numbers: ClassVar[None] = None
    known: ClassVar[None] = None

    def mask_where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        """Return a mask of the hosts for which the predicate, or its opposite, holds."""
        raise NotImplementedError

    def found(self) -> BoolArray:
        """Return a mask of the hosts that have the fact."""
        return self.mask_where(lambda text: True)


class CodedTexts(_Texts, frozen=True):
    """A text per host, '' if it has none.

    :ivar codes: index into ``names`` by host
    """

    codes: np.ndarray
    names: Sequence[str]

    def mask_where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        expected = not negated
        return _by_code(self.codes, self.names, lambda s: s != '' and predicate(s) is expected)


class TextSetBits(_Texts, frozen=True):
    """A set of texts per host, as bits; a condition is met by some member, or by none.

    :ivar bits: words by host
    :ivar texts: (bit, text); a bit may have several texts
    """

    bits: np.ndarray
    texts: Iterable[tuple[int, str]]

    def mask_where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        right = words_of(code for code, text in self.texts if predicate(text))
        return has_any(self.bits, right) != negated


class TextSets(_Texts, frozen=True):
    """A set of texts per host, few of them different; as :class:`TextSetBits`.

    :ivar codes: index into ``sets`` by host
    """

    codes: np.ndarray
    sets: Sequence[Sequence[str]]

    def mask_where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        return _by_code(
            self.codes, self.sets or [()], lambda texts: any(map(predicate, texts)) != negated
        )


class Values(msgspec.Struct, frozen=True):
    """A value of any type per host.

    :ivar sources: the first source that has a value of a host counts
    :ivar count: number of hosts
    """

    sources: Sequence[NovaFact]
    count: int

    @property
    def numbers(self) -> np.ndarray | None:
        """Values if they are one number per host; other values are unknown."""
        return self.sources[0].numbers if len(self.sources) == 1 else None

    @property
    def known(self) -> BoolArray:
        """Mask of the hosts that have the fact."""
        return self.found()

    def found(self) -> BoolArray:
        """Return a mask of the hosts that have the fact."""
        mask = np.zeros(self.count, np.bool_)
        for source in self.sources:
            mask |= source.is_there()
        return mask

    def mask_where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        """Return a mask of hosts for which the predicate, or its opposite, is known to hold."""
        expected = not negated

        def decide(value: Any) -> bool:
            return predicate(value) is expected

        if len(self.sources) == 1:
            return self.sources[0].mask_where(decide)
        mask, undecided = np.zeros(self.count, np.bool_), np.ones(self.count, np.bool_)
        for source in self.sources:
            mask |= source.mask_where(decide) & undecided
            undecided &= ~source.is_there()
        return mask

    def plain(self) -> list[Any]:
        """Return the values by host, None if there is none."""
        values: list[Any] = [None] * self.count
        for source in reversed(self.sources):
            for row in np.flatnonzero(source.is_there()).tolist():
                values[row] = source.value_at(row)
        return values


Column = Numbers | CodedTexts | TextSetBits | TextSets | Values


def _by_code(codes: np.ndarray, values: Sequence[Any], decide: Callable[[Any], bool]) -> BoolArray:
    """Return a mask of the values' decisions; only values that occur are evaluated, if few."""
    if len(values) <= len(codes):
        return np.fromiter(map(decide, values), np.bool_, len(values)).take(codes)
    mask = np.zeros(len(values), np.bool_)
    for code in set(codes.tolist()):
        mask[code] = decide(values[code])
    return mask.take(codes)


def coded_texts(values: Iterable[str]) -> CodedTexts:
    """Return texts by host as codes."""
    code_of: dict[str, int] = {}
    codes = [code_of.setdefault(value, len(code_of)) for value in values]
    return CodedTexts(np.array(codes, np.int64), list(code_of))


class Places:
    """Parsed dotted paths of locations, to find those at or below a place.

    One line per level, one number per path: the part at the level, and the place of the
    path down to the level; 0 beyond its end.
    """

    def __init__(self) -> None:
        self._parts = Codes([''])
        self._place_codes = Codes([''])
        self._levels = np.zeros((4, 64), np.int32)
        self._place_by_level_and_code = np.zeros((4, 64), np.intp)
        self._count_read = 0

    def read(self, names: Sequence[str]) -> None:
        """Parse the paths that were added since the last call; paths are only ever added."""
        for code in range(self._count_read, len(names)):
            parts = names[code].split('.') if names[code] else []
            self._reserve(len(parts), code)
            for level, part in enumerate(parts):
                self._levels[level, code] = self._parts.add(part)
                self._place_by_level_and_code[level, code] = self._place_codes.add(
                    '.'.join(parts[: level + 1])
                )
        self._count_read = max(self._count_read, len(names))

    def _reserve(self, levels: int, code: int) -> None:
        height, width = self._levels.shape
        if levels > height or code >= width:
            shape = (max(height, levels), width if code < width else 2 * width + code)
            for name in ('_levels', '_place_by_level_and_code'):
                old = getattr(self, name)
                new = np.zeros(shape, old.dtype)
                new[:height, :width] = old
                setattr(self, name, new)

    def below(self, place: str, codes: np.ndarray, exact: bool = False) -> BoolArray:
        """Return a mask of the rows whose path begins with ``place``; ``*`` matches any one part.

        :param exact: the path must end there
        """
        return self.below_any((place,), codes, exact)

    def below_any(
        self, places: Sequence[str], codes: np.ndarray, exact: bool = False, negated: bool = False
    ) -> BoolArray:
        """Return a mask of the rows whose path begins with one of ``places``, as :meth:`below`.

        :param negated: of the rows whose path does not, and which have one
        """
        path_mask = np.zeros(self._count_read, np.bool_)
        plain: dict[int, list[int]] = {}
        for place in places:
            parts = place.split('.')
            if '*' in parts:
                path_mask |= self._split_place(parts, exact)
            elif all(parts) and (number := self._place_codes.get(place)):
                plain.setdefault(len(parts) - 1, []).append(number)
        for level, numbers in plain.items():
            # Evaluated once per known place, however many are requested.
            is_requested = np.zeros(len(self._place_codes), np.bool_)
            is_requested[numbers] = True
            matches = is_requested.take(self._place_by_level_and_code[level, : self._count_read])
            path_mask |= self._end_of_place(matches, level + 1, exact)
        if negated:
            # Evaluated once per path: a host may have its own, or share it with others.
            np.greater(self._levels[0, : self._count_read] != 0, path_mask, out=path_mask)
        return path_mask.take(codes)

    def domains(self, depth: int, codes: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return the domains of rows: equal paths down to their part at ``depth``, from 0.

        :returns: an index into the places by row, -1 if a path ends before; and the places
        """
        if depth >= self._place_by_level_and_code.shape[0]:
            return np.full(len(codes), -1, np.int32), []
        place_numbers = self._place_by_level_and_code[depth, : self._count_read].take(codes)
        numbers, inverse = np.unique(place_numbers, return_inverse=True)
        names = self._place_codes.names
        index_of_number = np.cumsum(numbers != 0) - 1
        index_of_number[numbers == 0] = -1
        return index_of_number.astype(np.int32)[inverse], [names[n] for n in numbers.tolist() if n]

    def _split_place(self, parts: Sequence[str], exact: bool) -> BoolArray:
        """Return a mask of the paths that begin with the parts."""
        if len(parts) > self._levels.shape[0]:
            return np.zeros(self._count_read, np.bool_)
        mask = np.ones(self._count_read, np.bool_)
        for level, part in enumerate(parts):
            level_parts = self._levels[level, : self._count_read]
            # A part that no path has matches nothing, the empty part included.
            number = self._parts.get(part) or -1
            mask &= level_parts != 0 if part == '*' else level_parts == number
        return self._end_of_place(mask, len(parts), exact)

    def _end_of_place(self, mask: BoolArray, level: int, exact: bool) -> BoolArray:
        """Return ``mask``, narrowed to paths that end at a level if ``exact``."""
        if exact and level < self._levels.shape[0]:
            mask &= self._levels[level, : self._count_read] == 0
        return mask


_places_by_codes: 'WeakKeyDictionary[Codes, Places]' = WeakKeyDictionary()


def places_of(locations: Codes) -> Places:
    """Return the parsed paths of a table; cached, as paths are only ever added."""
    places = _places_by_codes.get(locations)
    if places is None:
        places = _places_by_codes[locations] = Places()
    places.read(locations.names)
    return places


#: Rows to evaluate; None: all.
RowSelection = IntArray | None


class FactView(msgspec.Struct, frozen=True):
    """The hosts whose facts are read, and the request for which they are read."""

    hosts: HostTable
    spec: RequestSpec
    rows: RowSelection = None

    def __len__(self) -> int:
        return len(self.hosts) if self.rows is None else len(self.rows)

    def at_rows(self, array: np.ndarray) -> np.ndarray:
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


class UnknownFactName(Exception):
    """No fact of that name; the message has the name, the expected form and the nearest name."""


def resolve_fact(name: str) -> tuple[Fact, str]:
    """Return a fact by its name in a rule, and its key.

    :raises UnknownFactName: names the nearest one
    """
    parts = name.split('.')
    for count in range(len(parts), 0, -1):
        fact = FACTS.get('.'.join(parts[:count]))
        if fact is None:
            continue
        key = '.'.join(parts[count:])
        if bool(key) == bool(fact.key):
            if fact.key == 'CLASS' and not resource_classes.is_class_name(key):
                raise UnknownFactName(
                    f'expected a resource class after {fact.name}, got {key}; {_near_class(key)}'
                )
            return fact, key
        if fact.key:
            raise UnknownFactName(f'expected {fact.shown}, got {name}')
        raise UnknownFactName(f'{fact.name} has no {key!r}; expected {fact.name} alone')
    meant = nearest_names(name, _SHOWN_NAMES, 1) or nearest_names(parts[0], _SHOWN_NAMES, 1)
    hint = f'did you mean {_SHOWN_NAMES[meant[0]]}?' if meant else f'known: {", ".join(FACTS)}'
    raise UnknownFactName(f'expected the name of a fact, got {name}; {hint}')


def _near_class(name: str) -> str:
    meant = nearest_names(name, sorted(resource_classes.STANDARD_CLASSES), 1)
    if meant:
        return f'did you mean {meant[0]}?'
    return f'expected CUSTOM_… or one of {", ".join(sorted(resource_classes.STANDARD_CLASSES))}'


# -- of a host ---------------------------------------------------------------------


def _metric(view: FactView, key: str) -> Numbers:
    measured = metric_values.metric_values(view.hosts, key)
    values = view.at_rows(np.full(len(view.hosts), np.nan) if measured is None else measured)
    return Numbers(values, ~np.isnan(values))


def _age(view: FactView, key: str) -> Numbers:
    reported = view.at_rows(view.hosts.reported_at)
    return Numbers(np.maximum(view.hosts.now - reported, 0.0), reported != 0)


def _hypervisor_version(view: FactView, key: str) -> Numbers:
    values = view.at_rows(view.hosts.hypervisor_version)
    return Numbers(values, values != 0)


def _zone(view: FactView, key: str) -> CodedTexts:
    names = [name or view.hosts.default_zone for name in view.hosts.zones.names]
    return CodedTexts(view.at_rows(view.hosts.zone), names)


def _host_numbers(field: str) -> Any:
    def read(view: FactView, key: str) -> CodedTexts:
        rows = range(len(view)) if view.rows is None else view.rows.tolist()
        return coded_texts(getattr(view.hosts.hosts[row].facts.hypervisor, field) for row in rows)

    return read


def _platform(get: Callable[[Hypervisor, str], str]) -> Any:
    def read(view: FactView, key: str) -> CodedTexts:
        return CodedTexts(
            view.at_rows(view.hosts.platform), [get(h, key) for h in _platforms(view)]
        )

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


def _cpu_features(view: FactView, key: str) -> TextSets:
    feature_lists = [_cpu(platform, 'features', list) for platform in _platforms(view)]
    return TextSets(
        view.at_rows(view.hosts.platform),
        [[f for f in features if isinstance(f, str)] for features in feature_lists],
    )


def _traits(view: FactView, key: str) -> TextSetBits:
    return TextSetBits(
        view.at_rows(view.hosts.traits), list(enumerate(view.hosts.trait_codes.names))
    )


def _in_aggregates(get: Callable[[Aggregate, str], list[str]], with_uuids: bool = False) -> Any:
    """Return a reader of texts of each host's aggregates."""

    def read(view: FactView, key: str) -> TextSetBits:
        codes = view.hosts.aggregate_codes
        texts_by_code: list[tuple[int, str]] = list(enumerate(codes.names)) if with_uuids else []
        for uuid, aggregate in view.hosts.known_aggregates.items():
            code = codes.get(uuid)
            if code is not None:
                texts_by_code += ((code, text) for text in get(aggregate, key))
        return TextSetBits(view.at_rows(view.hosts.aggregates), texts_by_code)

    return read


def _key_values(aggregate: Aggregate, key: str) -> list[str]:
    return [
        part.strip() for text in _only_text(aggregate.metadata, key) for part in text.split(',')
    ]


def _only_text(texts: Mapping[str, str], key: str) -> list[str]:
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


def capability_facts(
    hosts: HostTable, path: Sequence[str], with_stats: bool = True
) -> list[nova_facts.NovaFact]:
    """Return the facts of hosts at a path, best source first: their attribute, else ``stats``."""
    if path[0] == 'stats' and len(path) > 1:
        return [fact.inside(path[2:]) for fact in nova_facts.stats_fact(hosts, path[1])]
    attribute = nova_facts.nova_fact(hosts, path[0])
    sources = [] if attribute is None else [attribute]
    sources += nova_facts.stats_fact(hosts, path[0]) if with_stats else []
    return [fact.inside(path[1:]) for fact in sources]


def _nova_fact(name: str, kind: Kind, help: str, sign: str, with_stats: bool) -> Fact:
    """Return a family of facts by their names in Nova.

    :param sign: separator of the parts of a path
    """

    def path_of(key: str) -> list[str]:
        return key.split(sign) if with_stats else key.split(sign, nova_facts.PATH_STEPS_MAX)

    def read(view: FactView, key: str) -> Values:
        sources, rows = capability_facts(view.hosts, path_of(key), with_stats), view.rows
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


def _column_fact(
    name: str,
    help: str,
    kind: Kind = Kind.NUMBER,
    get: Callable[[HostTable], np.ndarray] | None = None,
    reads: tuple[str, ...] = (),
) -> Fact:
    """Return a fact of numbers by row: a column under its own name, or computed from columns."""

    def read(view: FactView, key: str) -> Numbers:
        return Numbers(view.at_rows(getattr(view.hosts, name) if get is None else get(view.hosts)))

    return Fact(name, kind, help, read, reads=reads or (name,))


def _class_fact(name: str, help: str, *reads: str) -> Fact:
    """Return a fact that is an amount of a resource class."""

    def read(view: FactView, key: str) -> Numbers:
        code = view.hosts.class_code(key)
        if code is None:
            return Numbers(np.zeros(len(view), np.int64))
        if name == 'physical':
            return Numbers(view.at_rows(nova_facts.free_amount(view.hosts, key)))
        return Numbers(view.at_rows(getattr(view.hosts, name)[code]))

    return Fact(name, Kind.NUMBER, help, read, 'CLASS', reads or (name,))


def _text_fact(name: str, help: str, codes: str, names: str, kind: Kind = Kind.TEXT) -> Fact:
    """Return a fact that is a column of texts, by code or one by one."""

    def read(view: FactView, key: str) -> CodedTexts:
        texts = getattr(view.hosts, names)
        if codes == names:
            return CodedTexts(np.arange(len(texts)) if view.rows is None else view.rows, texts)
        return CodedTexts(view.at_rows(getattr(view.hosts, codes)), texts.names)

    return Fact(name, kind, help, read, reads=(codes,))


def _hypervisor_fact(
    name: str, help: str, read: Any, key: str = '', kind: Kind = Kind.TEXT
) -> Fact:
    return Fact(name, kind, help, read, key, ('hypervisor',))


def _request_fact(name: str, help: str, get: Callable[[RequestSpec], str | None]) -> Fact:
    """Return a fact that is a text of the request, the same for every host."""

    def read(view: FactView, key: str) -> CodedTexts:
        return CodedTexts(np.zeros(len(view), np.int64), [get(view.spec) or ''])

    return Fact(f'request.{name}', Kind.TEXT, help, read)


def _request_set_fact(
    name: str, help: str, get: Callable[[RequestSpec, str], list[str]], key: str = ''
) -> Fact:
    def read(view: FactView, key: str) -> TextSets:
        return TextSets(np.zeros(len(view), np.int64), [get(view.spec, key)])

    return Fact(f'request.{name}', Kind.SET, help, read, key)


def _amount_of_request(view: FactView, key: str) -> Numbers:
    return Numbers(np.full(len(view), view.spec.resources.get(key, 0), np.int64))


_ALL_FACTS = (
    _text_fact('name', 'name of the service host', 'names', 'names'),
    _text_fact('node', 'name of the hypervisor host', 'nodes', 'nodes'),
    _text_fact('cell', 'uuid of its cell', 'cell', 'cells'),
    Fact('zone', Kind.TEXT, 'availability zone', _zone, reads=('zone',)),
    _text_fact(
        'location',
        'place in the topology, e.g. site1.room2.rack3.host4',
        'location',
        'locations',
        Kind.PATH,
    ),
    _column_fact('enabled', 'neither the operator nor the service has disabled it', Kind.BOOL),
    _column_fact('over_committed', 'found with more use than capacity', Kind.BOOL),
    Fact('age', Kind.NUMBER, 'seconds since its last report', _age, reads=('reported_at',)),
    _column_fact('instances', 'how many claims are live there'),
    _column_fact(
        'guests',
        'claims that are live there, or guests that it counts itself if these are more',
        get=nova_facts.instance_counts,
        reads=('instances', 'metrics', 'placed'),
    ),
    _column_fact(
        'failed_builds',
        'builds that failed there lately, as it reports',
        get=nova_facts.failed_builds,
        reads=('metrics',),
    ),
    _column_fact('io_ops', 'how many guests are being built, moved or copied there'),
    _column_fact('free_devices', 'how many devices are free'),
    _class_fact('cap', 'how much of a resource class may be promised'),
    _class_fact('used', 'how much of a class claims have taken'),
    _class_fact('free', 'how much of a class is left'),
    _class_fact('total', 'how much of a class there is, reserved and all'),
    _class_fact('reserved', 'how much of it the host keeps for itself'),
    _class_fact('ratio', 'how often the rest may be promised'),
    _class_fact(
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
        _in_aggregates(lambda a, key: _only_text(a.metadata, key)),
        'KEY',
        ('aggregates',),
    ),
    Fact(
        'metadata_listed',
        Kind.WORDS,
        'the same, taken apart at commas',
        _in_aggregates(_key_values),
        'KEY',
        ('aggregates',),
    ),
    _hypervisor_fact('hypervisor.type', 'what runs the guests', _platform(lambda h, key: h.type)),
    Fact(
        'hypervisor.version',
        Kind.VERSION,
        'and its version',
        _hypervisor_version,
        reads=('hypervisor_version',),
    ),
    _hypervisor_fact(
        'hypervisor.hostname', 'host name that it has of itself', _host_numbers('hostname')
    ),
    _hypervisor_fact('hypervisor.host_ip', 'its address', _host_numbers('host_ip')),
    _hypervisor_fact(
        'cpu.arch', 'architecture of its processors', _platform(lambda h, key: _cpu(h, 'arch', str))
    ),
    _hypervisor_fact('cpu.model', 'their model', _platform(lambda h, key: _cpu(h, 'model', str))),
    _hypervisor_fact(
        'cpu.vendor', 'their vendor', _platform(lambda h, key: _cpu(h, 'vendor', str))
    ),
    _hypervisor_fact('cpu.features', 'what they can do', _cpu_features, kind=Kind.SET),
    _hypervisor_fact(
        'stats',
        'other things that its driver says of it',
        _platform(lambda h, key: h.stats.get(key, '')),
        'KEY',
    ),
    _nova_fact('nova', Kind.VALUE, 'what ``$PATH`` is in a query of JsonFilter', '.', False),
    _nova_fact(
        'capabilities',
        Kind.WORD,
        'what ``capabilities:PATH`` is in an extra spec; a list contains its members',
        ':',
        True,
    ),
    _nova_fact(
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
    _request_fact('project', 'project that asks', lambda s: s.project_id),
    _request_fact('user', 'user who asks', lambda s: s.user_id),
    _request_fact(
        'purpose',
        'create, resize, migrate, live_migrate, evacuate, unshelve or rebuild',
        lambda s: s.purpose.value,
    ),
    _request_fact('type', 'type of the consumer', lambda s: s.consumer_type),
    _request_fact('zone', 'availability zone that is asked for', lambda s: s.availability_zone),
    _request_fact('flavor', 'name of the flavor', lambda s: s.flavor.name),
    _request_fact('image', 'uuid of the image', lambda s: s.image.uuid),
    _request_set_fact('traits', 'traits that are required', lambda s, key: s.required_traits),
    _request_set_fact(
        'extra_specs',
        'value of an extra spec of the flavor',
        lambda s, key: _only_text(s.flavor.extra_specs, key),
        'KEY',
    ),
    _request_set_fact(
        'properties',
        'value of a property of the image',
        lambda s, key: _only_text(s.image.properties, key),
        'KEY',
    ),
    _request_set_fact('hints', 'values of a hint', lambda s, key: s.hints.get(key, []), 'KEY'),
)

FACTS: dict[str, Fact] = {fact.name: fact for fact in _ALL_FACTS}
_SHOWN_NAMES = {fact.name: fact.shown for fact in _ALL_FACTS}
