# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: tests of what Gantt relies on in a filter or weigher.

On random clouds and requests: it does no I/O, changes nothing, answers the same when
called again, answers the same for a host wherever its row is and whatever else is there,
its array form is its per-host form, its declared effects of picks are the real
ones, it reads no column that it does not declare, and its reasons can be formatted.
Authors run it on a plugin of their own::

    from gantt.testing import conformance

    def test_my_filter_conforms():
        conformance.check(MyFilter)
"""

import contextlib
import inspect
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.filters.base import Filter, PairwiseFilter, PerHostFilter, RelaxableFilter
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Plugin
from gantt.core.resources.host import Placed
from gantt.core.table.caches import ArrayCache, MaskCache
from gantt.core.table.columns import COLUMNS, OBJECT_COLUMNS
from gantt.core.table.host_state import HostState
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher
from gantt.testing import clouds, guard

CASES_DEFAULT = 60
#: Findings reported per plugin: the rest is mostly the same again.
FINDINGS_MAX = 10
CONSUMER = clouds.GUESTS[0]
#: Picks that are laid over a host to see what they change.
PICKS_MAX = 3

#: Values of a hint that a plugin reads: some that it may accept, and some that it hardly expects.
HINT_VALUES: tuple[list[str], ...] = (
    ['1'],
    ['yes'],
    [],
    [''],
    ['x'],
    ['-1'],
    ['1e999'],
    ['['],
    ['é' * 300],
)

_encode = msgspec.msgpack.Encoder(enc_hook=repr).encode


class RuleFinding(msgspec.Struct, frozen=True):
    """One finding on a plugin.

    :ivar rule: pure | inside | own | same | place | form | steps | columns | fields | reasons
        | shape
    :ivar seed: seed of the case, to repeat it with ``first=seed`` and ``cases=1``
    """

    rule: str
    message: str
    seed: int

    def __str__(self) -> str:
        return f'{self.rule}: {self.message} (seed {self.seed})'


def check(plugin: type[Plugin] | Plugin, cases: int = CASES_DEFAULT, first: int = 0) -> None:
    """Examine a plugin, given as its class (with default options) or as an object.

    :raises AssertionError: with every finding, a line each
    """
    problems = examine(plugin, cases, first)
    if problems:
        raise AssertionError(f'{plugin.name} does not conform:\n' + '\n'.join(map(str, problems)))


def examine(
    plugin: type[Plugin] | Plugin, cases: int = CASES_DEFAULT, first: int = 0
) -> list[RuleFinding]:
    """Return the findings on a plugin; [] where there are none.

    :param first: the first seed; ``cases`` seeds are tried
    :raises PluginError: it is no plugin, or cannot be created with its default options
    """
    if cases < 1:
        raise ValueError(f'cases: expected at least 1, got {cases}')
    rule = _make_plugin(plugin) if isinstance(plugin, type) else plugin
    if not isinstance(rule, Filter | Weigher):
        raise exceptions.PluginError(
            plugin=rule.name, problem='is neither a Filter nor a Weigher', fix='Derive it from one'
        )
    rule.check_declarations()
    findings: list[RuleFinding] = []
    for seed in range(first, first + cases):
        for finding in _random_case(rule, seed):
            if finding.rule not in {earlier.rule for earlier in findings}:
                findings.append(finding)
        if len(findings) >= FINDINGS_MAX:
            break
    return findings


def _make_plugin(plugin: type[Plugin]) -> Plugin:
    try:
        return plugin()
    except exceptions.GanttError:
        raise
    except (Exception, SystemExit) as e:
        # The kit runs code that is not ours: whatever it raises is its failure.
        raise exceptions.PluginError(
            plugin=plugin.__name__,
            fix='Mend its __init__',
            problem=f'cannot be made with its default options: {type(e).__name__}: {e}',
        ) from e


def _random_case(rule: Filter | Weigher, seed: int) -> Iterator[RuleFinding]:
    rng = random.Random(seed)
    hosts, aggregates = clouds.a_cloud(rng)
    table, spec = clouds.a_table(hosts, aggregates), clouds.a_spec(rng)
    if isinstance(rule, Filter) and not _is_understood(rule, spec):
        return
    looks = _PluginExamination(rule, table.snapshot(), spec, seed)
    try:
        yield from looks.findings()
        mixed = hosts[:]
        rng.shuffle(mixed)
        few = [change for change in mixed if rng.random() < 0.6]
        yield from looks.elsewhere(clouds.a_table(mixed, aggregates), 'in another row')
        # Who else is there counts for groups only, and for scales: not for raw values.
        if not (isinstance(rule, Filter) and rule.pairwise):
            yield from looks.elsewhere(clouds.a_table(few, aggregates), 'with other hosts beside')
        yield from looks.with_hints()
    except guard.OutsideAccess as e:
        yield RuleFinding(
            'inside', f'reaches {e.reached}; expected nothing outside its arguments', seed
        )
    except exceptions.GanttError as e:
        yield RuleFinding('shape', f'raises {type(e).__name__}: {e.message}', seed)
    except (Exception, SystemExit) as e:
        # The kit runs code that is not ours: whatever it raises is what was found.
        yield RuleFinding('shape', f'raises {type(e).__name__}: {e}', seed)


def _is_understood(rule: Filter, spec: RequestSpec) -> bool:
    """Return whether the request would get as far as the masks."""
    try:
        rule.check_request(spec)
    except exceptions.InvalidMessage:
        return False
    return spec.purpose in rule.purposes


class _PluginExamination:
    """One plugin on one table and spec, a snapshot: writing to it raises."""

    def __init__(
        self, rule: Filter | Weigher, table: HostTable, spec: RequestSpec, seed: int
    ) -> None:
        self.rule = rule
        self.table = table
        self.spec = spec
        self.seed = seed
        self.hints_requested: set[str] = set()

    def answer(self, table: Any = None, spec: Any = None) -> np.ndarray | None:
        """Return the mask, or the raw values of all rows, under guard."""
        table = self.table if table is None else table
        spec = self.spec if spec is None else spec
        with guard.guarded():
            if isinstance(self.rule, PairwiseFilter):
                return self.rule.mask_for(table, spec, CONSUMER)
            if isinstance(self.rule, Filter):
                return self.rule.mask(table, spec)
            return self.rule.raw(table, spec, np.arange(len(table)))

    def findings(self) -> Iterator[RuleFinding]:
        before = self._snapshot_state()
        message = self.answer()
        yield from self._check_shape(message)
        # Nobody writes to a mask, but for those that are kept.
        lasts = isinstance(self.rule, Weigher) or self.rule.fields is not None
        if (
            lasts
            and message is not None
            and any(np.may_share_memory(message, array) for array in self.table.arrays.values())
        ):
            yield self._find('own', 'returns a column of the table, expected an array of its own')
        if not _are_equal(message, self.answer()):
            yield self._find('same', 'says something else when asked the same again')
        if self._snapshot_state() != before:
            yield self._find('pure', 'changes the table, the spec or itself')
        yield from self._check_undeclared_reads()
        if isinstance(self.rule, Filter):
            yield from self._check_forms(self.rule, message)
            yield from self._check_picks_left(self.rule, message)
            yield from self._check_reasons(self.rule, message)
        else:
            yield from self._check_weigher_forms(self.rule, message)
            yield from self._check_steps(self.rule, message)

    def elsewhere(self, other: HostTable, where: str) -> Iterator[RuleFinding]:
        """Check that the same hosts in another table get the same verdicts."""
        answer, other_answer = self.answer(), self.answer(other.snapshot())
        for row, name in enumerate(other.names):
            own_row = self.table.row_of(name)
            verdict, other_verdict = (
                _verdict_on_row(answer, own_row),
                _verdict_on_row(other_answer, row),
            )
            if isinstance(self.rule, Weigher) and (answer is None or other_answer is None):
                continue  # no preference at all: nothing is compared
            if verdict != other_verdict:
                yield self._find('place', f'says {other_verdict} of {name} {where}, else {verdict}')
                return

    def with_hints(self) -> Iterator[RuleFinding]:
        """Examine the plugin again with each hint that it reads, with each of the values.

        A plugin that only such a request concerns does nothing in all other cases.
        """
        for name in sorted(self.hints_requested - self.spec.hints.keys()):
            for value in HINT_VALUES:
                try:
                    hints = {**self.spec.hints, name: value}
                    spec = msgspec.structs.replace(self.spec, hints=hints)
                except ValueError:
                    continue  # no door lets it in
                if not isinstance(self.rule, Filter) or _is_understood(self.rule, spec):
                    with contextlib.suppress(exceptions.InvalidMessage):
                        yield from _PluginExamination(
                            self.rule, self.table, spec, self.seed
                        ).findings()

    # -- parts ---------------------------------------------------------------
    def _find(self, rule: str, message: str) -> RuleFinding:
        return RuleFinding(rule, message, self.seed)

    def _snapshot_state(self) -> tuple[Any, ...]:
        arrays = {name: getattr(self.table, name).tobytes() for name in COLUMNS}
        placed = {int(i): dict(self.table.placed.on_provider(int(i))) for i in self.table.ids}
        return arrays, list(self.table.names), placed, _encode(self.spec), _plugin_state(self.rule)

    def _check_shape(self, message: object) -> Iterator[RuleFinding]:
        count = len(self.table)
        if message is None:
            return
        if not isinstance(message, np.ndarray) or message.shape != (count,):
            yield self._find('shape', f'expected one value per host, {count} of them')
        elif isinstance(self.rule, Filter) and message.dtype != np.bool_:
            yield self._find('shape', f'expected a mask of bool, got {message.dtype}')
        elif isinstance(self.rule, Weigher) and not np.isfinite(message.astype(float)).all():
            yield self._find('shape', 'expected finite numbers')

    def _check_undeclared_reads(self) -> Iterator[RuleFinding]:
        table, spec = WatchedTable(self.table), WatchedSpec(self.spec)
        self.answer(table, spec)
        self.hints_requested = spec.hints_requested.columns_read
        declared = set(self.rule.columns)
        # A filter that declares none may read anything: it is called again after each pick.
        if declared and (
            missing := table.read - declared - _COLUMNS_FREE_TO_READ - _implied_columns(declared)
        ):
            yield self._find('columns', f'reads {", ".join(sorted(missing))} undeclared')
        fields = getattr(self.rule, 'fields', None)
        if fields is not None:
            if missing := spec.read - set(fields):
                yield self._find('fields', f'reads {", ".join(sorted(missing))} undeclared')
            if 'now' in table.read or '*' in table.read:
                yield self._find('fields', 'reads the clock or whole hosts: it cannot be kept')

    def _check_forms(self, rule: Filter, message: np.ndarray | None) -> Iterator[RuleFinding]:
        rows = np.arange(len(self.table))
        with guard.guarded():
            concerned = rule.concerns(self.spec)
        if not concerned:
            if message is not None and not message.all():
                yield self._find('form', 'removes hosts, and says the request does not concern it')
            return
        if isinstance(rule, PerHostFilter):
            with guard.guarded():
                each = [rule.mask_rows(self.table, self.spec, rows[i : i + 1])[0] for i in rows]
            yield from self._compare_forms(message, each, 'mask_rows')
        if rule.local:
            with guard.guarded():
                each = [rule.passes(self.table, self.spec, int(row)) for row in rows]
            if isinstance(rule, RelaxableFilter):  # it may say no where it does not know
                each = [
                    verdict or _verdict_on_row(message, row) for row, verdict in enumerate(each)
                ]
            yield from self._compare_forms(message, each, 'passes')

    def _compare_forms(
        self, message: np.ndarray | None, each: Iterable[Any], form: str
    ) -> Iterator[RuleFinding]:
        for row, verdict in enumerate(each):
            if _verdict_on_row(message, row) != verdict:
                name = self.table.names[row]
                yield self._find(
                    'form', f'{form} says {verdict} of {name}, the array {not verdict}'
                )
                return

    def _check_weigher_forms(
        self, rule: Weigher, message: np.ndarray | None
    ) -> Iterator[RuleFinding]:
        if message is None:
            return
        some = np.arange(0, len(self.table), 2)
        with guard.guarded():
            part = rule.raw(self.table, self.spec, some)
        if part is not None and not _are_equal(part, message.take(some)):
            yield self._find('form', 'says something else of the same rows asked alone')
        if rule.local:
            for row in range(len(self.table)):
                with guard.guarded():
                    value = rule.value(self.table, self.spec, row)
                if value != message[row]:
                    name = self.table.names[row]
                    yield self._find('form', f'value is {value} for {name}, raw {message[row]}')
                    return

    def _check_picks_left(self, rule: Filter, message: np.ndarray | None) -> Iterator[RuleFinding]:
        """Check that the plugin allows as many picks on a host as it declares, and no more."""
        if not rule.local or self.spec.may_need_topology:
            return
        for row in range(len(self.table)) if rule.concerns(self.spec) else ():
            if not _verdict_on_row(message, row):
                continue
            with guard.guarded():
                declared = rule.picks_left(self.table, self.spec, row)
            if declared is None:
                continue
            table, picks = self.table.copy(), 0
            with guard.guarded():
                while picks <= min(declared, PICKS_MAX) and rule.passes(table, self.spec, row):
                    self._pick(table, row, picks)
                    picks += 1
            if picks != min(declared, PICKS_MAX + 1):
                host = self.table.names[row]
                yield self._find('steps', f'says {declared} picks are left on {host}, not {picks}')
                return

    def _check_steps(self, rule: Weigher, message: np.ndarray | None) -> Iterator[RuleFinding]:
        """Check that a pick changes the raw value of its host as declared."""
        if not rule.local or message is None or self.spec.may_need_topology:
            return
        with guard.guarded():
            step = rule.step(self.table, self.spec)
        if step is None:
            return
        for row in range(len(self.table)):
            table = self.table.copy()
            for number in range(PICKS_MAX):
                self._pick(table, row, number)
                with guard.guarded():
                    value = rule.value(table, self.spec, row)
                expected = message[row].item() + (number + 1) * step
                if value != expected:
                    value_by_steps = f'{value} for {self.table.names[row]}, by its steps {expected}'
                    yield self._find(
                        'steps', f'after {number + 1} picks its value is {value_by_steps}'
                    )
                    return

    def _pick(self, table: HostTable, row: int, number: int) -> None:
        host = table.hosts[row].id
        placed = Placed(clouds.an_id(9, number), clouds.an_id(8, number), host)
        table.add_pick(host, self.spec.resources, placed)

    def _check_reasons(self, rule: Filter, message: np.ndarray | None) -> Iterator[RuleFinding]:
        rows = np.flatnonzero(~message) if message is not None else np.zeros(0, np.int64)
        if not len(rows):
            return
        with guard.guarded():
            detail = rule.detail(self.table, self.spec, rows)
            texts = [rule.reason_for(self.spec, detail), rule.remedy(self.table, self.spec, rows)]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            yield self._find('reasons', f'expected texts, got {texts}')
        parts = detail.get('parts')
        if parts is not None and sum(parts.values()) != len(rows):
            yield self._find('reasons', f'parts {parts} do not add up to {len(rows)} hosts')


#: What a module or class may hold state in.
_DATA_TYPES = (dict, list, set, deque, int, float, str, bytearray)


def _plugin_state(rule: Plugin) -> list[str]:
    """Return the state of a plugin, its classes and its module, to compare after a call."""
    inner = getattr(rule, 'nova_filter', None)  # of one written for Nova
    inner_type = type(rule) if inner is None else type(inner)
    holders = [vars(rule), vars(inner) if hasattr(inner, '__dict__') else {}]
    holders += [dict(vars(cls)) for cls in inner_type.__mro__ if cls is not object]
    holders.append(dict(vars(sys.modules.get(inner_type.__module__))))
    return [
        repr(value)
        for number, holder in enumerate(holders)
        for name, value in holder.items()
        if number == 0 or (isinstance(value, _DATA_TYPES) and not name.startswith('__'))
    ]


#: Read by every plugin: how many rows there are, and their names.
_COLUMNS_FREE_TO_READ = frozenset({'ids', 'now', '*'})


def _implied_columns(declared: set[str]) -> set[str]:
    """Return the columns that the declared columns stand for."""
    columns = set()
    if declared & {'numa', 'rooms', 'devices'}:
        columns |= {'numa', 'rooms', 'devices', 'free_devices', 'kind_free', 'numa_cells'}
        columns |= {name for name in COLUMNS if name.startswith('cell_')}
    if declared & {'free', 'used'}:
        columns |= {'free', 'used', 'cap'}
    if 'zone' in declared:  # it changes with each aggregate
        columns |= {'aggregates'}
    if declared & {'names', 'nodes'}:
        columns |= {'names', 'nodes'}
    return columns


def _verdict_on_row(message: np.ndarray | None, row: int | None) -> Any:
    """Return the verdict on one row; without a mask every row passes."""
    return True if message is None or row is None else message[row].item()


def _are_equal(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one, other, equal_nan=True))


def describe(plugin: type[Plugin]) -> str:
    """Return one line about a plugin that conforms."""
    kind = 'filter' if issubclass(plugin, Filter) else 'weigher'
    form = 'asked host by host' if issubclass(plugin, PerHostFilter) else 'over columns'
    where = inspect.getmodule(plugin)
    return f'{kind} {plugin.name} of {where.__name__ if where else "?"}, {form}'


#: Methods and helpers of a table -> the columns that their answers follow from.
READS: dict[str, tuple[str, ...]] = {
    'free_of': ('free',),
    'cap_of': ('cap',),
    'served': ('free',),
    'pool_for': ('free',),
    'pools': ('free',),
    'row_of': ('names',),
    'rows_of_host': ('names',),
    'services': ('names',),
    'service_name': ('names',),
    'rows_of_services': ('names',),
    'rows_beside': ('names',),
    'rows_of_names': ('names',),
    'rows_of_nodes': ('nodes',),
    'rows_of_consumer': ('placed',),
    'aggregate_bits': ('aggregates',),
    'aggregates_of': ('aggregates',),
    'known_aggregates': ('aggregates',),
    'aggregate_codes': ('aggregates',),
    'trait_codes': ('traits',),
    'zones': ('zone',),
    'zone_name': ('zone',),
    'default_zone': ('zone',),
    'location_parts': ('location',),
    'cells': ('cell',),
    'cell_name': ('cell',),
    'locations': ('location',),
    'now': ('now',),
}
_COLUMNS = {**{name: (name,) for name in (*COLUMNS, *OBJECT_COLUMNS)}, **READS}


class WatchedTable:
    """A proxy of a host table that records the columns which are read.

    :ivar read: columns read so far; ``now`` for the clock, ``*`` where a host's whole
        row or state was handed out, whose facts are not followed
    """

    def __init__(self, table: HostTable) -> None:
        self._table = table
        self.read: set[str] = set()
        # Nothing is kept from before: what it was computed from would not be read.
        self.mask_cache = MaskCache()
        self.array_cache = ArrayCache(table.versions)

    def __len__(self) -> int:
        return len(self._table)

    def __getattr__(self, name: str) -> Any:
        self.read.update(_COLUMNS.get(name, ()))
        if name in ('hosts', 'host_state', 'changes'):
            self.read.add('*')
        return getattr(self._table, name)

    def host_state(self, row: int | str) -> HostState:
        """Return a view of the real table: what is read of it is not followed."""
        self.read.add('*')
        return self._table.host_state(row)


class WatchedHints(dict[str, list[str]]):
    """A dict of hints that records which of them are read."""

    def __init__(self, hints: dict[str, list[str]]) -> None:
        super().__init__(hints)
        self.columns_read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value as of a dict."""
        self.columns_read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> list[str]:
        self.columns_read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.columns_read.add(str(name))
        return super().__contains__(name)


class WatchedSpec:
    """A proxy of a request spec that records the fields and hints which are read."""

    def __init__(self, spec: RequestSpec) -> None:
        self._spec = spec
        self.read: set[str] = set()
        self.hints_requested = WatchedHints(spec.hints)

    def __getattr__(self, name: str) -> Any:
        if name == 'hints':
            self.read.add(name)
            return self.hints_requested
        if name in RequestSpec.__struct_fields__:
            self.read.add(name)
        return getattr(self._spec, name)
