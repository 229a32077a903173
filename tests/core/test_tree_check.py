# SPDX-License-Identifier: Apache-2.0
"""Findings of an audit of trees, beside a plain walk from each provider upwards."""

from hypothesis import given
from hypothesis import strategies as st

from gantt.core.resources.provider import TreeNode, roots_of, tree_faults

IDS = st.integers(1, 9)
#: Any provider below any other, also below itself, or below one that is not there.
PARENTS = st.dictionaries(IDS, st.none() | st.integers(1, 12))


def a_node(pid, parent, root=None, **fields):
    kind = 'pool' if parent is None else 'nested'
    base = {'kind': kind, 'is_host': False, 'root': pid if root is None else root}
    return TreeNode(
        **{'id': pid, 'uuid': f'u{pid}', 'name': f'n{pid}', 'parent': parent, **base, **fields}
    )


def walked(parents, pid):
    """Return the root that is reached, 'gone', or 'circle'."""
    for _ in range(len(parents) + 1):
        if pid not in parents:
            return 'gone'
        if parents[pid] is None:
            return pid
        pid = parents[pid]
    return 'circle'


def circles(parents):
    """Return each circle as the set of those on it."""
    cycles = set()
    for pid in parents:
        path = [pid]
        while path[-1] in parents and parents[path[-1]] not in (None, *path):
            path.append(parents[path[-1]])
        if parents.get(path[-1]) == pid:
            cycles.add(frozenset(path))
    return cycles


@given(PARENTS)
def test_roots_are_those_that_a_walk_reaches(parents):
    reached = {pid: walked(parents, pid) for pid in parents}
    expected = {pid: root for pid, root in reached.items() if not isinstance(root, str)}
    assert roots_of(parents) == expected


@given(PARENTS, st.dictionaries(IDS, IDS))
def test_each_fault_has_one_line_where_it_is(parents, noted):
    roots = roots_of(parents)
    nodes = [a_node(pid, parent, noted.get(pid)) for pid, parent in sorted(parents.items())]
    lines = list(tree_faults(nodes))
    orphans = {pid: p for pid, p in parents.items() if p is not None and p not in parents}
    wrong = [pid for pid, root in roots.items() if noted.get(pid, pid) != root]
    assert len(lines) == len(orphans) + len(circles(parents)) + len(wrong)
    for pid, parent in orphans.items():
        below = sum(pid in path(parents, other) for other in parents) - 1
        more = f'; {below} are below it' if below else ''
        assert f'provider u{pid} (n{pid}): its parent, row {parent}, is gone{more}' in lines
    for circle in circles(parents):
        (line,) = [
            line
            for line in lines
            if line.startswith(f'provider u{min(circle)} (') and 'itself' in line
        ]
        assert len(circle) > 5 or set(line.rpartition(' by ')[2].split(', ')) == {
            f'n{member}' for member in circle
        }
    for pid in wrong:
        assert any(line.startswith(f'provider u{pid} (n{pid}): its root is ') for line in lines)


def path(parents, pid):
    """Return all providers passed on the way up, with itself."""
    passed = []
    while pid in parents and pid not in passed:
        passed.append(pid)
        pid = parents[pid]
    return passed


def test_trees_that_are_whole_have_no_line():
    host = a_node(1, None, kind='host', is_host=True)
    nested = [a_node(n, n - 1, 1) for n in range(2, 6)]
    assert list(tree_faults([host, *nested, a_node(7, None)])) == []
    assert list(tree_faults([])) == []


def test_a_long_circle_is_named_in_part():
    nodes = [a_node(n, (n + 1) % 9) for n in range(9)]
    (line,) = tree_faults(nodes)
    assert line == 'provider u0 (n0): is below itself, by n0, n1, n2, n3, n4 and 4 more'


def test_a_deep_tree_is_followed_without_recursion():
    """Walk once: each provider is passed once, however deep the tree."""
    deep = [a_node(1, None), *(a_node(n, n - 1, 1) for n in range(2, 50_001))]
    assert list(tree_faults(deep)) == []
    assert list(tree_faults(deep[::-1])) == []
    assert list(tree_faults(deep[1:]))[0].endswith('its parent, row 1, is gone; 49998 are below it')


def test_kinds():
    lines = {
        line.partition('): ')[2]
        for line in tree_faults(
            [
                a_node(1, None, kind='nested'),
                a_node(2, 1, 1, kind='pool'),
                a_node(3, None, kind='host'),
                a_node(4, None, is_host=True),
                a_node(5, 1, 1, kind='host', is_host=True),
                a_node(6, None, kind='odd'),
            ]
        )
    }
    assert lines == {
        'is of kind nested, has no record of a host and is a root',
        'is of kind pool, has no record of a host and is below another one',
        'is of kind host, has no record of a host and is a root',
        'is of kind pool, has the record of a host and is a root',
        'is a host, and below another provider',
        'is of kind odd, has no record of a host and is a root',
    }
