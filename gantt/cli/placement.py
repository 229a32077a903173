# SPDX-License-Identifier: Apache-2.0
"""Base classes of the commands that use Placement's interface."""

import argparse
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from gantt.cli import base
from gantt.cli.endpoint import Endpoint, Failure, parameters, refusal
from gantt.core.messages.base import UUID

#: Code of a refusal after a concurrent change, and the number of attempts.
CONCURRENT_UPDATE = 'placement.concurrent_update'
TRIES = 3
NUMBERS = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size', 'allocation_ratio')
_DEFAULTS = dict(zip(NUMBERS[1:], (0, 1, 2_147_483_647, 1, 1.0), strict=True))
_UUID = re.compile(UUID)
#: Description of an object in one line: name -> value; '': no value.
Described = Mapping[str, str]


def uuid(value: str) -> str:
    """Check that an argument is a uuid."""
    if not _UUID.match(value):
        raise argparse.ArgumentTypeError(f'expected a uuid, got {value!r}')
    return value


def inventory(value: str) -> tuple[str, dict[str, Any]]:
    """Parse an argument such as ``VCPU=64`` or ``VCPU=64,allocation_ratio=4,reserved=2``."""
    name, equals, rest = value.partition('=')
    total, *pairs = rest.split(',')
    numbers: dict[str, Any] = {}
    try:
        numbers['total'] = int(total)
        for pair in pairs:
            key, _, number = pair.partition('=')
            if key not in NUMBERS:
                raise ValueError(key)
            numbers[key] = float(number) if key == 'allocation_ratio' else int(number)
    except ValueError:
        equals = ''
    if not (name and equals):
        raise argparse.ArgumentTypeError(
            'expected CLASS=TOTAL and, after commas, any of '
            f'{", ".join(NUMBERS[1:])}, such as VCPU=64,allocation_ratio=4; got {value!r}'
        )
    return name, numbers


def find(endpoint: Endpoint, provider: str) -> dict[str, Any]:
    """Return a provider by its uuid or its name.  :raises Failure: there is none"""
    by = 'uuid' if _UUID.match(provider) else 'name'
    providers = endpoint.get('/resource_providers', **{by: provider})['resource_providers']
    if not providers:
        raise Failure(f'there is no provider with the {by} {provider!r}; see "gantt provider list"')
    match: dict[str, Any] = providers[0]
    return match


def unless_raced(change: Callable[[], None]) -> None:
    """Run a change, and repeat it after a concurrent update.  :raises Failure:"""
    for retries_left in reversed(range(TRIES)):
        try:
            change()
            return
        except Failure as e:
            if e.error.get('code') != CONCURRENT_UPDATE or not retries_left:
                raise


class OfPlacement(base.Base):
    """A command that uses Placement's interface."""

    @functools.cached_property
    def placement(self) -> Endpoint:
        """The endpoint of Placement's interface.  :raises Failure:"""
        return self.endpoint.placement


class PlacementLister(OfPlacement, base.Lister):
    """A list that is fetched whole."""

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        """Return all rows.  :raises Failure:"""
        answer = self.placement.get(self.path, **self.query(args))
        return list(answer[self.member])

    def fetch(
        self, args: argparse.Namespace, most: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        rows = self.rows(args)
        return rows[:most], {}, len(rows) > most


#: Verb of a change -> verb of a dry run.
_WOULD = {'is': 'would be', 'has': 'would have'}


class PlacementWrite(OfPlacement):
    """A change: says in one sentence what was done, or with --dry-run would be."""

    _dry_run: 'DryRunEndpoint | None' = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option of a dry run."""
        return base.with_dry_run(super().get_parser(prog_name))

    def verb(self, word: str) -> str:
        """Return ``is`` or ``has``, in the conditional for a dry run."""
        return word if self._dry_run is None else _WOULD[word]

    def act(self, args: argparse.Namespace) -> str:
        """Make the change and return a summary.  :raises Failure:"""
        raise NotImplementedError

    def done(self, what: str) -> None:
        """Record one part of a change as made."""
        self.made = [*self.made, what]

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Make the change and print its summary."""
        if parsed_args.dry_run:
            return self._try(parsed_args)
        try:
            what = self.act(parsed_args)
        except Failure as e:
            e.notes += [f'done before: {part}' for part in self.made]
            raise
        self.done(what)
        return self.show(parsed_args, {'dry_run': False, 'message': what}, [what])

    def _try(self, args: argparse.Namespace) -> int:
        dry_run = self.placement = self._dry_run = DryRunEndpoint(self.placement)
        what = self.act(args)
        differences = '; '.join(dry_run.differences)
        if not dry_run.would_change:
            differences = 'nothing would change'
        what += f': {differences}' if differences else ''
        self.made = []
        return self.show(args, {'dry_run': True, 'message': what}, [f'dry run: {what}'])


class DryRunEndpoint(Endpoint):
    """An endpoint whose writes the service carries out, and undoes in the end.

    Each call sends the writes before it once more, so that it is answered as if they had been made.

    :ivar differences: changes that would result, each with ``+``, ``-`` or ``~`` before it
    :ivar would_change: whether there would be any
    """

    def __init__(self, placement: Endpoint) -> None:
        super().__init__(placement.url, placement.timeout)
        self.differences: list[str] = []
        self.would_change = False
        self._placement = placement
        self._writes: list[dict[str, Any]] = []

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        body: Any = None,
        timeout: float | None = None,
        unwell: bool = False,
    ) -> Any:
        """Return the answer of a request after the writes so far.  :raises Failure: refused"""
        if method == 'GET':
            target = f'{path}?{urlencode(parameters(query))}'
            return _content(self._answers(_request('GET', target))[-1])
        write = _request(method, path, body)
        read = _request('GET', path if method != 'POST' else f'{path}/{body["uuid"]}')
        before, answer, after = self._answers(read, write, read)[-3:]
        content = _content(answer)
        self._writes.append(write)
        self._differ(described(before), described(after))
        return content

    def _answers(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the answers after the writes so far.  :raises Failure: one of these is refused"""
        body = {'requests': [*self._writes, *requests]}
        answers: list[dict[str, Any]] = self._placement.post('/dry_run', body)['answers']
        for answer in answers[: len(self._writes)]:
            _content(answer)
        return answers

    def _differ(self, before: Described | None, after: Described | None) -> None:
        self.would_change |= before != after
        if before is None or after is None:
            return  # the summary says that it comes or goes
        for key in sorted(before.keys() | after.keys()):
            old, new = before.get(key), after.get(key)
            if old == new:
                continue
            sign = '+' if old is None else '-' if new is None else '~'
            value = old if new is None else new
            was = f' (was {old})' if sign == '~' else ''
            self.differences.append(f'{sign} {key}{f"={value}" if value else ""}{was}')


def _request(method: str, path: str, body: Any = None) -> dict[str, Any]:
    return {'method': method, 'path': path} | ({} if body is None else {'body': body})


def _content(answer: dict[str, Any]) -> Any:
    """Return the body of one of several answers.  :raises Failure: it is a refusal"""
    if answer['status'] >= 400:
        raise refusal(answer['body'])
    return answer['body'] or {}


def described(answer: dict[str, Any]) -> Described | None:
    """Return what a read answers, in the words of the options; None: it is not there."""
    if answer['status'] >= 400:
        return None
    body = answer['body'] or {}
    if 'parent_provider_uuid' in body:
        return {'name': body['name'], 'parent': body['parent_provider_uuid'] or 'none'}
    if 'inventories' in body:
        return {name: _amounts(numbers) for name, numbers in body['inventories'].items()}
    if 'allocations' in body:
        return {
            f'{uuid}:{name}': str(amount)
            for uuid, allocation in body['allocations'].items()
            for name, amount in allocation['resources'].items()
        }
    return {
        f'{noun} {name}': '' for noun in ('trait', 'aggregate') for name in body.get(f'{noun}s', ())
    }


def _amounts(numbers: dict[str, Any]) -> str:
    """Return an inventory in the form of ``--inventory``, without default numbers."""
    rest = (
        f',{name}={f"{numbers[name]:g}" if name == "allocation_ratio" else numbers[name]}'
        for name, default in _DEFAULTS.items()
        if numbers[name] != default
    )
    return f'{numbers["total"]}{"".join(rest)}'
