# SPDX-License-Identifier: Apache-2.0
"""Directives that render tables of the code, so that no document repeats one by hand.

.. gantt-errors::
.. gantt-metrics::
.. gantt-claim-states::
.. gantt-request-states::
.. gantt-options::
.. gantt-plugins:: gantt.filters
.. gantt-facts::
.. gantt-columns::
.. gantt-keys:: flavor
.. gantt-release-notes::
.. gantt-tree::
.. gantt-contracts::
.. gantt-flow:: request
.. gantt-decisions::
"""

import ast
import configparser
import contextlib
import functools
import importlib
import inspect
import io
import os
import pathlib
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from gantt import conf, exceptions
from gantt.cli import main as cli
from gantt.cmd import policies
from gantt.core.claims import claim, request_state
from gantt.core.messages.keys import known_keys
from gantt.core.rules.facts import FACTS
from gantt.core.table import columns
from gantt.telemetry import metrics

ROOT = pathlib.Path(__file__).parents[3]


def table(header: list[str], rows: list[list[str]], widths: str = 'auto') -> Iterator[str]:
    """A list-table in reStructuredText."""
    yield '.. list-table::'
    yield '   :header-rows: 1'
    yield f'   :widths: {widths}'
    yield '   :class: gantt'
    yield '   :width: 100%'
    yield ''
    for row in [header, *rows]:
        for index, cell in enumerate(row):
            yield f'   {"* " if index == 0 else "  "}- {cell}'
    yield ''


class Generated(SphinxDirective):
    """Base: a directive whose content is reStructuredText that ``lines`` yields."""

    has_content = False

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        box = nodes.section()
        box.document = self.state.document
        content = StringList(list(self.lines()), source=self.get_source_info()[0])
        self.state.nested_parse(content, self.content_offset, box, match_titles=True)
        return box.children


class Errors(Generated):
    """The tree of errors, from ``gantt.exceptions``."""

    def lines(self) -> Iterator[str]:
        rows = []
        for cls, depth in self._walk(exceptions.GanttError, 0):
            doc = (cls.__doc__ or '').strip().splitlines()[0].replace('"', '\\"')
            rows.append(
                [f'``{cls.code}``', f'{"  " * depth}{cls.__name__}', str(cls.http_status), doc]
            )
        yield from table(['Code', 'Class', 'HTTP', 'Meaning'], rows, '30 20 10 40')

    def _walk(self, cls: Any, depth: int) -> Iterator[tuple[Any, int]]:
        yield cls, depth
        for child in cls.__subclasses__():
            if child.__module__ == 'gantt.exceptions':
                yield from self._walk(child, depth + 1)


class MetricsTable(Generated):
    """Every metric, from ``gantt.telemetry.metrics``."""

    def lines(self) -> Iterator[str]:
        rows = [
            [
                f'``{metric.name}``',
                metric.kind.value,
                ', '.join(f'``{label}``' for label in metric.labels),
                metric.help,
            ]
            for metric in metrics.TABLE
        ]
        yield from table(['Name', 'Kind', 'Labels', 'Meaning'], rows, '34 10 16 40')


class Policies(Generated):
    """Every rule about who may do what, of the code."""

    def lines(self) -> Iterator[str]:
        for rule in policies.list_rules():
            yield f'``{rule.name}``'
            yield f'   {rule.description}'
            yield ''
            for operation in getattr(rule, 'operations', ()):
                yield f'   * ``{operation["method"]} {operation["path"]}``'
            yield ''
            yield f'   Asks for ``{rule.check_str}``.'
            yield ''


class Facts(Generated):
    """Every fact that a rule may be about, from ``gantt.core.rules.facts``."""

    def lines(self) -> Iterator[str]:
        rows = [[f'``{fact.shown}``', fact.kind.value, fact.help] for fact in FACTS.values()]
        yield from table(['Fact', 'Kind', 'Meaning'], rows, '30 15 55')


class KnownKeys(Generated):
    """Keys and who reads them, from ``gantt.core.messages.keys.known_keys``."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        kind = known_keys.KeyKind[self.arguments[0].upper()]
        names_by_row: dict[tuple[str, str], list[str]] = {}
        for key in known_keys.KNOWN_KEYS:
            if key.of is kind:
                readers = ', '.join(key.readers) or 'refused'
                names_by_row.setdefault((readers, key.says), []).append(f'``{key.name}``')
        rows = [[', '.join(names), *row] for row, names in names_by_row.items()]
        yield from table(['Keys', 'Read by', 'Meaning'], rows, '45 25 30')


class HostColumns(Generated):
    """What a filter may read of the host table, from ``gantt.core.table.columns``."""

    def lines(self) -> Iterator[str]:
        rows = [
            [f'``{name}``', self._shape(name), column.doc]
            for name, column in columns.COLUMNS.items()
        ]
        rows += [[f'``{name}``', 'object', one.doc] for name, one in columns.OBJECT_COLUMNS.items()]
        yield from table(['Column', 'Type', 'Of each host'], rows, '20 25 55')

    def _shape(self, name: str) -> str:
        column = columns.COLUMNS[name]
        lines = 'by class' if column.by == 'class' else 'several lines' if column.lines else ''
        kind = columns.COLUMN_TYPES[name].__name__.rstrip('_')
        return f'{kind}, {lines}' if lines else kind


class ClaimStates(Generated):
    """The transitions of a claim, from ``gantt.core.claims.claim``."""

    def lines(self) -> Iterator[str]:
        states = [state for state in claim.State if state in claim.LIVE_STATES]
        rows = []
        for event in claim.Event:
            cells = [f'``{event.value}``', self._meaning(event)]
            for state in states:
                after = claim.TRANSITIONS.get((state, event))
                cells.append(f'**{after.value}**' if after and after != state else '–')
            rows.append(cells)
        header = ['Event', 'What happened', *(f'from {state.value}' for state in states)]
        yield from table(header, rows, '18 42 20 20')

    def _meaning(self, event: claim.Event) -> str:
        return comments_of(claim.Event).get(event.name, '')


class RequestStates(Generated):
    """The states of a request and its transitions, from ``gantt.core.claims.request_state``."""

    def lines(self) -> Iterator[str]:
        meanings = comments_of(request_state.RequestState)
        states = list(request_state.RequestState)
        rows = [[f'*{state.value}*', meanings[state.name]] for state in states]
        yield from table(['State', 'Meaning'], rows, '20 80')
        meanings, open_states = comments_of(request_state.RequestEvent), states[:-1]
        rows = [
            [
                f'``{event.value}``',
                meanings[event.name],
                *(self._cell(state, event) for state in open_states),
            ]
            for event in request_state.RequestEvent
        ]
        header = ['Event', 'What happened', *(f'when {state.value}' for state in open_states)]
        yield from table(header, rows, '13 24 21 21 21')

    def _cell(self, state: request_state.RequestState, event: request_state.RequestEvent) -> str:
        after, effects = request_state.TRANSITIONS[state, event]
        becomes = '' if after is state else f'**{after.value}**: '
        return becomes + ', '.join(effect.value for effect in effects)


class Options(Generated):
    """Every option of Gantt, from ``gantt.conf``."""

    def lines(self) -> Iterator[str]:
        for group, options in conf.list_opts():
            title = f'[{group or "DEFAULT"}]'
            yield from (title, '-' * len(title), '')
            for option in options:
                yield from self._option(option)

    def _option(self, option: Any) -> Iterator[str]:
        default = option.sample_default if option.sample_default is not None else option.default
        shown = '(none)' if default in (None, '', [], {}) else str(default)
        limits = [
            f'{word} {value}'
            for word, value in (
                ('at least', getattr(option.type, 'min', None)),
                ('at most', getattr(option.type, 'max', None)),
            )
            if isinstance(value, int | float)
        ]
        kind = str(option.type).split('(', maxsplit=1)[0].lower() or 'text'
        facts = [kind, *limits, *(['changed by SIGHUP'] if option.mutable else [])]
        yield f'``{option.dest}`` = ``{shown}``'
        yield f'   *{", ".join(facts)}.*'
        yield ''
        yield from textwrap.indent(textwrap.dedent(option.help or '').strip(), '   ').splitlines()
        yield ''


class Plugins(Generated):
    """The entry points of a group, from setup.cfg, with the first line of their docstrings."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        parser = configparser.ConfigParser(delimiters=('=',), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(ROOT / 'setup.cfg')
        rows = []
        for line in parser['options.entry_points'][self.arguments[0]].strip().splitlines():
            name, _, target = line.partition('=')
            module, _, attribute = target.strip().partition(':')
            found = getattr(importlib.import_module(module), attribute)
            doc = inspect.getdoc(found) or ''
            rows.append([f'``{name.strip()}``', ' '.join(doc.split('\n\n')[0].split())])
        yield from table(['Name', 'What it does'], rows, '35 65')


class Commands(Generated):
    """The commands of ``gantt``, as each explains itself."""

    def lines(self) -> Iterator[str]:
        os.environ['COLUMNS'] = '88'
        for name in cli.commands():
            title = f'gantt {name}'
            yield from (title, '-' * len(title), '', '.. code-block:: text', '')
            yield from textwrap.indent(self._help(name), '   ').splitlines()
            yield ''

    def _help(self, name: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            cli.main([*name.split(), '--help'])
        return out.getvalue()


#: Kinds of release notes as reno has them, and what they are called here.
NOTES = {
    'upgrade': 'To know before an upgrade',
    'deprecations': 'Goes away',
    'security': 'Security',
    'critical': 'Critical',
    'issues': 'Known trouble',
    'features': 'New',
    'fixes': 'Mended',
    'other': 'Other',
}


class ReleaseNotes(Generated):
    """The notes of ``releasenotes/notes`` in this tree, by kind.

    Read from the files, which reno makes: its own directive asks git, and these documents are
    also made from an archive without it.
    """

    def lines(self) -> Iterator[str]:
        notes = [
            yaml.safe_load(path.read_text())
            for path in sorted((ROOT / 'releasenotes' / 'notes').glob('*.yaml'))
        ]
        for note in notes:
            yield from [*note.get('prelude', '').strip().splitlines(), '']
        for kind, title in NOTES.items():
            texts = [text for note in notes for text in note.get(kind, ())]
            if not texts:
                continue
            yield from [f'.. rubric:: {title}', '']
            for text in texts:
                first, *rest = text.strip().splitlines()
                yield from [f'* {first}', *(f'  {line}'.rstrip() for line in rest)]
            yield ''


def first_line(path: pathlib.Path) -> str:
    """The first line of a module's docstring."""
    said = ast.get_docstring(ast.parse(path.read_text())) or ''
    return said.partition('\n')[0]


class Tree(Generated):
    """Every folder of the package with its first line, from the tree itself."""

    def lines(self) -> Iterator[str]:
        rows = []
        for path in sorted((ROOT / 'gantt').rglob('__init__.py')):
            count = len(list(path.parent.glob('*.py'))) - 1
            name = path.parent.relative_to(ROOT)
            rows.append([f'``{name}``', str(count), first_line(path)])
        yield from table(['Folder', 'Modules', 'What lives there'], rows, '30 10 60')


class Contracts(Generated):
    """Who may import whom, from ``pyproject.toml``."""

    def lines(self) -> Iterator[str]:
        stated = tomllib.loads((ROOT / 'pyproject.toml').read_text())
        for contract in stated['tool']['importlinter']['contracts']:
            yield f'* {contract["name"]}'
            if contract['type'] == 'layers':
                layers = (' '.join(layer.split()) for layer in contract['layers'])
                names = ', then '.join(f'``{layer}``' for layer in layers)
                yield f'  (from the top: {names})'
        yield ''


class FlowFiles(Generated):
    """The files that a flow passes, in order, from ``bench.flow``."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        flow = _flows()[self.arguments[0]]
        yield f'{flow.calls} calls pass {len(flow.path)} files:'
        yield ''
        for name in flow.path:
            yield f'#. ``{name}``: {first_line(ROOT / name)}'
        yield ''


class Decisions(Generated):
    """The decisions with their status and date, from the head of each page."""

    def lines(self) -> Iterator[str]:
        rows = []
        for path in sorted((ROOT / 'doc' / 'source' / 'decisions').glob('0*.rst')):
            title, _, _, status, date = path.read_text().splitlines()[:5]
            rows.append(
                [
                    f':doc:`{title} <{path.stem}>`',
                    with_links(status.removeprefix(':Status: ')),
                    date.removeprefix(':Date: '),
                ]
            )
        yield from table(['Decision', 'Status', 'Date'], rows, '56 30 14')


def with_links(status: str) -> str:
    """A status whose numbers of decisions are links."""

    def link(match: re.Match[str]) -> str:
        [page] = (ROOT / 'doc' / 'source' / 'decisions').glob(f'{match[0]}-*.rst')
        return f':doc:`{match[0]} </decisions/{page.stem}>`'

    return re.sub(r'\d{4}', link, status)


def link_status(app: Any, docname: str, source: list[str]) -> None:
    """Make links of the numbers in the status of a decision, before its page is parsed."""
    if docname.startswith('decisions/0'):
        source[0] = re.sub(
            r'^:Status: .*', lambda match: with_links(match[0]), source[0], count=1, flags=re.M
        )


@functools.cache
def _flows() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from bench import flow

    return flow.flows()


def comments_of(cls: Any) -> dict[str, str]:
    """Attribute -> the comment behind its assignment, of a class."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    found = {}
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for node in definition.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, 'target', None)
        if isinstance(target, ast.Name) and node.end_lineno:
            match = re.search(r'  # (?!fmt|noqa|type:)(.*)$', lines[node.end_lineno - 1])
            if match:
                text = match.group(1).strip()
                found[target.id] = text[0].upper() + text[1:]
    return found


def ivars_of(cls: Any) -> dict[str, str]:
    """Attribute -> its ``:ivar`` description, of a class."""
    doc = inspect.getdoc(cls) or ''
    pairs = re.findall(r':ivar (\w+): (.*?)(?=\n:|\Z)', doc, re.DOTALL)
    return {name: ' '.join(text.split()) for name, text in pairs}


def setup(app: Any) -> dict[str, Any]:
    app.add_directive('gantt-errors', Errors)
    app.add_directive('gantt-metrics', MetricsTable)
    app.add_directive('gantt-policies', Policies)
    app.add_directive('gantt-facts', Facts)
    app.add_directive('gantt-columns', HostColumns)
    app.add_directive('gantt-keys', KnownKeys)
    app.add_directive('gantt-claim-states', ClaimStates)
    app.add_directive('gantt-request-states', RequestStates)
    app.add_directive('gantt-options', Options)
    app.add_directive('gantt-plugins', Plugins)
    app.add_directive('gantt-commands', Commands)
    app.add_directive('gantt-release-notes', ReleaseNotes)
    app.add_directive('gantt-tree', Tree)
    app.add_directive('gantt-contracts', Contracts)
    app.add_directive('gantt-flow', FlowFiles)
    app.add_directive('gantt-decisions', Decisions)
    app.connect('source-read', link_status)
    return {'version': '1', 'parallel_read_safe': False}
