# SPDX-License-Identifier: Apache-2.0
"""Audit checks of provider trees."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gantt.core.resources.host import HostKind
from gantt.core.resources.provider import kind_of

#: Upper bound of the providers of a circle that its line names.
NAMES_MAX = 5


class TreeNode(NamedTuple):
    """The position of a provider in its tree, as stored in its row.

    :ivar name: of a host the name of its service, of others their own
    :ivar kind: as stored, not necessarily one of ``HostKind``
    :ivar parent: id; None: it is a root
    :ivar root: id of the root of its tree; its own of a root
    :ivar is_host: it has the record of a host
    """

    id: int
    uuid: str
    name: str
    kind: str
    parent: int | None
    root: int
    is_host: bool

    @property
    def shown(self) -> str:
        """Name of the provider in a line of the audit, with the uuid that commands accept."""
        return f'provider {self.uuid} ({self.name})'


def roots_of(parents: Mapping[int, int | None]) -> dict[int, int]:
    """Return the root that each provider reaches by its parents.

    Providers that reach none are left out: a parent is missing, or they lead into a circle.

    :param parents: parent of every provider; None: it is a root
    """
    root_of: dict[int, int | None] = {}
    for provider in parents:
        path: dict[int, None] = {}
        ancestor: int | None = provider
        while (
            ancestor is not None
            and ancestor not in root_of
            and ancestor not in path
            and ancestor in parents
        ):
            path[ancestor] = None
            root_candidate, ancestor = ancestor, parents[ancestor]
        if ancestor is None:
            root: int | None = root_candidate
        else:
            root = root_of.get(ancestor)  # in a circle, or below a missing parent: none
        root_of.update(dict.fromkeys(path, root))
    return {provider: root for provider, root in root_of.items() if root is not None}


def broken(nodes: Sequence[TreeNode]) -> Iterator[str]:
    """Yield a line for each fault of the trees; providers below a fault are not named again.

    :param nodes: all providers
    """
    node_of = {node.id: node for node in nodes}
    parents = {node.id: node.parent for node in nodes}
    roots = roots_of(parents)
    yield from _orphans(nodes, node_of, roots)
    for circle in _circles(parents, roots):
        names = [node_of[provider].name for provider in circle[:NAMES_MAX]]
        suffix = f' and {len(circle) - NAMES_MAX} more' if len(circle) > NAMES_MAX else ''
        yield f'{node_of[circle[0]].shown}: is below itself, by {", ".join(names)}{suffix}'
    for node in nodes:
        root = roots.get(node.id)
        if root is not None and root != node.root:
            noted = (
                node_of[node.root].shown
                if node.root in node_of
                else f'row {node.root}, which is gone'
            )
            yield f'{node.shown}: its root is {node_of[root].shown}, its row says {noted}'
    for node in nodes:
        yield from _kind(node)


def _orphans(
    nodes: Iterable[TreeNode], of: Mapping[int, TreeNode], roots: Mapping[int, int]
) -> Iterator[str]:
    """Yield a line for each provider whose parent is missing, with the number below it."""
    orphans = {node.id for node in nodes if node.parent is not None and node.parent not in of}
    if not orphans:
        return
    # As if each of these were a root.
    parents = {
        provider: None if provider in orphans else node.parent for provider, node in of.items()
    }
    trees = Counter(root for provider, root in roots_of(parents).items() if provider not in roots)
    for provider in sorted(orphans):
        descendants = trees[provider] - 1
        suffix = f'; {descendants} are below it' if descendants else ''
        yield f'{of[provider].shown}: its parent, row {of[provider].parent}, is gone{suffix}'


def _circles(parents: Mapping[int, int | None], roots: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield circles of parents, each once, beginning with its lowest id."""
    seen: set[int] = set()
    for provider in sorted(parents.keys() - roots.keys()):
        path: dict[int, None] = {}
        ancestor: int | None = provider
        while ancestor in parents and ancestor not in seen and ancestor not in path:
            assert ancestor is not None  # a root is reached by none of these
            path[ancestor] = None
            ancestor = parents[ancestor]
        seen.update(path)
        if ancestor in path:
            steps = list(path)
            circle = steps[steps.index(ancestor) :]
            first = circle.index(min(circle))
            yield circle[first:] + circle[:first]


def _kind(node: TreeNode) -> Iterator[str]:
    expected = HostKind.HOST if node.is_host else kind_of(node.parent)
    if node.kind != expected.value:
        record = 'has the record of a host' if node.is_host else 'has no record of a host'
        place = 'is a root' if node.parent is None else 'is below another one'
        yield f'{node.shown}: is of kind {node.kind}, {record} and {place}'
    elif node.is_host and node.parent is not None:
        yield f'{node.shown}: is a host, and below another provider'
