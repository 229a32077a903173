# SPDX-License-Identifier: Apache-2.0
"""What the commands have in common that speak to Placement's interface."""

import argparse
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gantt.cli import base
from gantt.cli.endpoint import Endpoint, Failure
from gantt.core.messages.base import UUID

if TYPE_CHECKING:
    from gantt.cli.trial import Trial

#: What a change that somebody else was faster with is refused with; and so often it is tried.
CONCURRENT_UPDATE = 'placement.concurrent_update'
TRIES = 3
NUMBERS = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size', 'allocation_ratio')
_UUID = re.compile(UUID)


def uuid(value: str) -> str:
    """An argument type: a uuid."""
    if not _UUID.match(value):
        raise argparse.ArgumentTypeError(f'expected a uuid, got {value!r}')
    return value


def inventory(value: str) -> tuple[str, dict[str, Any]]:
    """An argument type: ``VCPU=64``, ``VCPU=64,allocation_ratio=4,reserved=2``."""
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
    """A provider by its uuid or its name.  :raises Failure: there is none"""
    by = 'uuid' if _UUID.match(provider) else 'name'
    found = endpoint.get('/resource_providers', **{by: provider})['resource_providers']
    if not found:
        raise Failure(f'there is no provider with the {by} {provider!r}; see "gantt provider list"')
    one: dict[str, Any] = found[0]
    return one


def unless_raced(change: Callable[[], None]) -> None:
    """Do it again where somebody else changed meanwhile what it began from.  :raises Failure:"""
    for left in reversed(range(TRIES)):
        try:
            change()
            return
        except Failure as e:
            if e.error.get('code') != CONCURRENT_UPDATE or not left:
                raise


class OfPlacement(base.Base):
    """A command that speaks to Placement's interface."""

    @functools.cached_property
    def placement(self) -> Endpoint:
        """Where to ask.  :raises Failure:"""
        return self.endpoint.placement


class PlacementLister(OfPlacement, base.Lister):
    """A list that comes whole."""

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        """All of them.  :raises Failure:"""
        found = self.placement.get(self.path, **self.query(args))
        return list(found[self.member])

    def fetch(
        self, args: argparse.Namespace, most: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        rows = self.rows(args)
        return rows[:most], {}, len(rows) > most


#: What is said of a change -> of one that is only tried.
_WOULD = {'is': 'would be', 'has': 'would have'}


class PlacementWrite(OfPlacement):
    """A change: says in one sentence what was done, or with --dry-run would be.

    Placement's interface has no dry run: see ``gantt.cli.trial``.
    """

    _trial: 'Trial | None' = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Adds the dry run."""
        return base.with_dry_run(super().get_parser(prog_name))

    def verb(self, word: str) -> str:
        """``is`` or ``has``, as it is said of what is only tried too."""
        return word if self._trial is None else _WOULD[word]

    def act(self, args: argparse.Namespace) -> str:
        """Do it; what was done.  :raises Failure:"""
        raise NotImplementedError

    def done(self, what: str) -> None:
        """Of a change of several parts: one of them."""
        self.made = [*self.made, what]

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Do it and say so."""
        if parsed_args.dry_run:
            return self._try(parsed_args)
        try:
            what = self.act(parsed_args)
        except Failure as e:
            e.notes += [f'done before: {one}' for one in self.made]
            raise
        self.done(what)
        return self.show(parsed_args, {'dry_run': False, 'what': what}, [what])

    def _try(self, args: argparse.Namespace) -> int:
        from gantt.cli.trial import Trial  # takes longer to import than most commands take

        trial = self._trial = Trial(self.placement, self.endpoint)
        self.placement = trial
        what = self.act(args)
        differences = '; '.join(trial.differences)
        if not trial.would_change:
            differences = 'nothing would change'
        what += f': {differences}' if differences else ''
        self.made = []
        return self.show(args, {'dry_run': True, 'what': what}, [f'dry run: {what}'])
