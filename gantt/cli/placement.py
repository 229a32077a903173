# SPDX-License-Identifier: Apache-2.0
"""Base classes of the commands that use Placement's interface."""

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

#: Code of a refusal after a concurrent change, and the number of attempts.
CONCURRENT_UPDATE = 'placement.concurrent_update'
TRIES = 3
NUMBERS = ('total', 'reserved', 'min_unit', 'max_unit', 'step_size', 'allocation_ratio')
_UUID = re.compile(UUID)


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
    """A change: says in one sentence what was done, or with --dry-run would be.

    Placement's interface has no dry run: see ``gantt.cli.trial``.
    """

    _trial: 'Trial | None' = None

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the option of a dry run."""
        return base.with_dry_run(super().get_parser(prog_name))

    def verb(self, word: str) -> str:
        """Return ``is`` or ``has``, in the conditional for a dry run."""
        return word if self._trial is None else _WOULD[word]

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
