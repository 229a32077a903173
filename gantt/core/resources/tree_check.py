# SPDX-License-Identifier: Apache-2.0
"""What an audit looks for in the trees that providers form."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gantt.core.resources.host import HostKind
from gantt.core.resources.provider import kind_of

#: Providers of a circle that its line names.
NAMES_MAX = 5


class TreeNode(NamedTuple):
    """A provider as its row says where it stands.

    :ivar name: of a host that of its service, of others their own
    :ivar kind: a word, which need not be one of ``HostKind``
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
        """How a line names it: the uuid is what commands take."""
        return f'provider {self.uuid} ({self.name})'


def roots_of(parents: Mapping[int, int | None]) -> dict[int, int]:
    """The root that each provider reaches by its parents.

    Those that reach none are left out: a parent is gone, or they lead into a circle.

    :param parents: of every provider; None: it is a root
    """
    found: dict[int, int | None] = {}
    for one in parents:
        path: dict[int, None] = {}
        at: int | None = one
        while at is not None and at not in found and at not in path and at in parents:
            path[at] = None
            last, at = at, parents[at]
        if at is None:
            root: int | None = last
        else:
            root = found.get(at)  # of a circle, or where a parent is gone: none
        found.update(dict.fromkeys(path, root))
    return {one: root for one, root in found.items() if root is not None}


def broken(nodes: Sequence[TreeNode]) -> Iterator[str]:
    """A line for each fault of the trees, where it is; what is below it is not named again.

    :param nodes: all providers there are
    """
    of = {node.id: node for node in nodes}
    parents = {node.id: node.parent for node in nodes}
    roots = roots_of(parents)
    yield from _orphans(nodes, of, roots)
    for circle in _circles(parents, roots):
        names = [of[one].name for one in circle[:NAMES_MAX]]
        more = f' and {len(circle) - NAMES_MAX} more' if len(circle) > NAMES_MAX else ''
        yield f'{of[circle[0]].shown}: is below itself, by {", ".join(names)}{more}'
    for node in nodes:
        root = roots.get(node.id)
        if root is not None and root != node.root:
            noted = of[node.root].shown if node.root in of else f'row {node.root}, which is gone'
            yield f'{node.shown}: its root is {of[root].shown}, its row says {noted}'
    for node in nodes:
        yield from _kind(node)


def _orphans(
    nodes: Iterable[TreeNode], of: Mapping[int, TreeNode], roots: Mapping[int, int]
) -> Iterator[str]:
    """Those whose parent is gone, with how many are below them."""
    gone = {node.id for node in nodes if node.parent is not None and node.parent not in of}
    if not gone:
        return
    # As if each of these were a root.
    parents = {one: None if one in gone else node.parent for one, node in of.items()}
    trees = Counter(root for one, root in roots_of(parents).items() if one not in roots)
    for one in sorted(gone):
        below = trees[one] - 1
        more = f'; {below} are below it' if below else ''
        yield f'{of[one].shown}: its parent, row {of[one].parent}, is gone{more}'


def _circles(parents: Mapping[int, int | None], roots: Mapping[int, int]) -> Iterator[list[int]]:
    """Circles of parents, each once, from its lowest id on."""
    seen: set[int] = set()
    for one in sorted(parents.keys() - roots.keys()):
        path: dict[int, None] = {}
        at: int | None = one
        while at in parents and at not in seen and at not in path:
            assert at is not None  # a root is reached by none of these
            path[at] = None
            at = parents[at]
        seen.update(path)
        if at in path:
            steps = list(path)
            circle = steps[steps.index(at) :]
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
