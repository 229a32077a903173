# SPDX-License-Identifier: Apache-2.0
"""Candidates of the real Placement and of Gantt for the same clouds and queries, by chance.

``python -m tests.placement.differential [--gantt DATABASE] [--seeds N] [--first SEED]``
"""

import argparse
import contextlib
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from gantt.core.candidates.query import SHARES_TRAIT, CandidatesQuery
from gantt.core.candidates.table import ProviderEntry
from tests.placement import ours, real
from tests.placement.server import Server, ServerError
from tests.properties.candidate_worlds import CLASSES, TRAITS, CandidateWorld
from tests.properties.plain_candidates import PlainCandidate

VERSION = '1.39'
#: Queries of one cloud; between two of them one provider becomes another.
QUERIES = 4


def build(server: Server, world: CandidateWorld) -> None:
    """The providers of a world, with what is used of them."""
    for name in TRAITS:
        server.make_trait(name)
    for name in CLASSES:
        server.make_class(name)
    for pid, entry in world.entries.items():
        parent = None if entry.parent_id is None else world.entries[entry.parent_id].uuid
        server.make_provider(entry.uuid, f'{pid}-{entry.uuid}', parent)
        _write(server, entry, 0)


def change(server: Server, before: ProviderEntry, entry: ProviderEntry) -> None:
    """One provider, which is there, becomes another."""
    if _used(before):
        server.request('DELETE', f'/allocations/{consumer_of(before)}')
    _write(server, entry, server.request('GET', f'/resource_providers/{entry.uuid}')['generation'])


def _write(server: Server, entry: ProviderEntry, generation: int) -> None:
    """What there is of a provider of which nothing is used, and then what is used."""
    path = f'/resource_providers/{entry.uuid}'
    inventories = {
        name: {
            'total': inventory.cap,
            'min_unit': inventory.min_unit,
            'max_unit': inventory.max_unit,
            'step_size': inventory.step_size,
        }
        for name, inventory in entry.inventories.items()
    }
    body = {'inventories': inventories, 'resource_provider_generation': generation}
    answer = server.request('PUT', f'{path}/inventories', body)
    body = {
        'traits': list(entry.traits),
        'resource_provider_generation': answer['resource_provider_generation'],
    }
    server.request('PUT', f'{path}/traits', body)
    server.set_aggregates(entry.uuid, entry.aggregates)
    if used := _used(entry):
        server.allocate(consumer_of(entry), 'user', 'project', entry.uuid, used)


def _used(entry: ProviderEntry) -> dict[str, int]:
    return {name: inventory.used for name, inventory in entry.inventories.items() if inventory.used}


def consumer_of(entry: ProviderEntry) -> str:
    """Of all that is used of a provider in one of its states."""
    return str(uuid.uuid5(uuid.UUID(entry.uuid), f'{entry.version}'))


def parameters(query: CandidatesQuery) -> str:
    """A query as version 1.39 writes it."""
    pairs: list[tuple[str, str]] = []
    for group in query.groups:
        suffix = group.suffix
        if group.resources:
            amounts = ','.join(f'{name}:{amount}' for name, amount in group.resources.items())
            pairs.append((f'resources{suffix}', amounts))
        pairs += [(f'required{suffix}', f'in:{",".join(sorted(n))}') for n in group.required]
        pairs += [(f'required{suffix}', f'!{name}') for name in sorted(group.forbidden)]
        pairs += [(f'member_of{suffix}', f'in:{",".join(sorted(n))}') for n in group.member_of]
        if group.forbidden_aggregates:
            without = ','.join(sorted(group.forbidden_aggregates))
            pairs.append((f'member_of{suffix}', f'!in:{without}'))
        if group.in_tree:
            pairs.append((f'in_tree{suffix}', group.in_tree))
    pairs += [('same_subtree', ','.join(sorted(suffixes))) for suffixes in query.same_subtree]
    roots = [*sorted(query.root_required), *(f'!{name}' for name in sorted(query.root_forbidden))]
    if roots:
        pairs.append(('root_required', ','.join(roots)))
    if query.limit is not None:
        pairs.append(('limit', str(query.limit)))
    pairs.append(('group_policy', 'isolate' if query.isolate else 'none'))
    return urlencode(pairs)


def conflicts(query: CandidatesQuery) -> bool:
    """Whether it is refused: a trait both required and forbidden."""
    groups = any(names <= group.forbidden for group in query.groups for names in group.required)
    return groups or bool(query.root_required & query.root_forbidden)


def candidates(
    server: Server, query: CandidatesQuery
) -> tuple[dict[PlainCandidate, None], dict[str, object]]:
    """The candidates that a server has, and its summaries of providers.

    :raises ServerError: it answers otherwise, or one comes twice
    """
    path = f'/allocation_candidates?{parameters(query)}'
    body = server.request('GET', path, version=VERSION)
    candidates_seen = {}
    for request in body['allocation_requests']:
        amounts = frozenset(
            (provider, name, amount)
            for provider, of in request['allocations'].items()
            for name, amount in of['resources'].items()
        )
        mappings = frozenset((s, frozenset(uuids)) for s, uuids in request['mappings'].items())
        candidates_seen[amounts, mappings] = None
    if len(candidates_seen) != len(body['allocation_requests']):
        raise ServerError(f'{server.url}{path}: a candidate comes twice')
    summaries = {
        provider: {**summary, 'traits': sorted(summary['traits'])}
        for provider, summary in body['provider_summaries'].items()
    }
    return candidates_seen, summaries


def problem(world: CandidateWorld, query: CandidatesQuery, theirs: Server, own: Server) -> str:
    """How both differ for one query; nothing where they do not.

    Of a group without suffix that lies on pools alone the real one remembers only one of the trees
    that these serve, whichever comes first: what it leaves out therefore counts for nothing.
    """
    expected, their_summaries = candidates(theirs, query)
    offered, summaries = candidates(own, query)
    pools = {entry.uuid for entry in world.entries.values() if SHARES_TRAIT in entry.traits}
    more = [
        candidate
        for candidate in offered
        if candidate not in expected and not _is_on_pools(candidate, pools)
    ]
    less = [candidate for candidate in expected if candidate not in offered]
    if more or less:
        return f'only ours: {more}; only theirs: {less}'
    if len(offered) == len(expected) and summaries != their_summaries:
        return f'summaries: ours {summaries}, theirs {their_summaries}'
    return ''


def _is_on_pools(candidate: PlainCandidate, pools: set[str]) -> bool:
    lying = dict(candidate[1]).get('', frozenset())
    return bool(lying) and lying <= pools


def compare(seed: int, theirs: Server, own: Server) -> list[str]:
    """What differs in one world."""
    world = CandidateWorld(seed)
    for server in (theirs, own):
        build(server, world)
    problems = []
    for _ in range(QUERIES):
        query = world.query()
        if not conflicts(query) and (text := problem(world, query, theirs, own)):
            problems.append(f'seed {seed}: {parameters(query)}: {text}')
        before = dict(world.entries)
        entry = world.change()
        for server in (theirs, own):
            change(server, before[entry.id], entry)
    for server in (theirs, own):
        server.clean()
    return problems


@contextlib.contextmanager
def both(python: Path, database: str) -> Iterator[tuple[Server, Server]]:
    """The real Placement and Gantt, empty."""
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(real.servers(python, ['legacy']))
        own = stack.enter_context(ours.servers(database, ['legacy']))
        yield (
            stack.enter_context(contextlib.closing(Server(urls['legacy']))),
            stack.enter_context(contextlib.closing(Server(own['legacy']))),
        )


def main(words: list[str] | None = None) -> int:
    """0: no difference."""
    parser = argparse.ArgumentParser(prog='python -m tests.placement.differential')
    parser.add_argument('--python', type=Path, default=Path('.venv-placement/bin/python'))
    parser.add_argument('--gantt', choices=ours.DATABASES, default='sqlite')
    parser.add_argument('--seeds', type=int, default=2000, help='how many worlds (%(default)s)')
    parser.add_argument('--first', type=int, default=0, help='the first seed (%(default)s)')
    given = parser.parse_args(words)
    failed = 0
    with both(given.python, given.gantt) as (theirs, own):
        for seed in range(given.first, given.first + given.seeds):
            for text in compare(seed, theirs, own):
                failed += 1
                print(text, flush=True)
    print(f'{given.seeds} worlds of {QUERIES} queries, {failed} differences')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
