# SPDX-License-Identifier: Apache-2.0
"""What a scheduler's request asks of one tree, as a query for candidates."""

from collections.abc import Callable, Collection, Mapping

from gantt.core.candidates.query import CandidatesQuery, GroupQuery
from gantt.core.messages.tree_request import ResourceGroup, TreeRequest

#: Uuids of the aggregates that go by a uuid or a name.
Resolve = Callable[[str], frozenset[str]]


def query_of(
    resources: Mapping[str, int], tree: TreeRequest | None, nested: Collection[str], find: Resolve
) -> CandidatesQuery:
    """The query for the best candidate of one tree.

    Of the group without a suffix it has the classes that may lie below the root, or that other
    groups want as well.  Of the others each host has what its columns say.

    :param nested: classes that something below a host has
    """
    groups = [] if tree is None else list(tree.expanded())
    wanted = {name for one in groups for name in one.group.resources}
    spread = {name: n for name, n in resources.items() if name in nested or name in wanted}
    queries = [GroupQuery(resources=spread)] if spread else []
    queries += [_group(one.suffix, one.group, one.whole, find) for one in groups]
    return CandidatesQuery(
        groups=tuple(queries),
        apart=() if tree is None else tuple(tree.distinct()),
        once=True,
        same_subtree=() if tree is None else tuple(map(frozenset, tree.same_subtree)),
        limit=1,
    )


def _group(suffix: str, group: ResourceGroup, whole: bool, find: Resolve) -> GroupQuery:
    return GroupQuery(
        suffix=suffix,
        resources=group.resources,
        required=(
            *(frozenset((name,)) for name in group.required_traits),
            *map(frozenset, group.any_traits),
        ),
        forbidden=frozenset(group.forbidden_traits),
        member_of=tuple(frozenset[str]().union(*map(find, names)) for names in group.member_of),
        forbidden_aggregates=frozenset[str]().union(*map(find, group.forbidden_aggregates)),
        in_tree=group.in_tree,
        whole=whole,
    )
