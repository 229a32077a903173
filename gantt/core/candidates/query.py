# SPDX-License-Identifier: Apache-2.0
"""What candidates are wanted for: groups of resources, and what holds for all of them."""

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from gantt.core.messages.tree_request import ResourceGroup, TreeRequest

#: The trait of a provider that serves the trees which have a provider in one of its aggregates.
SHARES = 'MISC_SHARES_VIA_AGGREGATE'
#: No two groups with a suffix on one provider.
ISOLATE = 'isolate'


class GroupQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One group: without a suffix each class may come from another provider, else all from one.

    :ivar resources: class -> amount, at least 1; empty only with a suffix
    :ivar required: of each set one trait
    :ivar member_of: of each set one aggregate, by uuid
    :ivar in_tree: uuid of a provider whose tree it has to be
    :ivar whole: of its one class all that a provider has, at least the amount, and nothing used
    """

    suffix: str = ''
    resources: dict[str, int] = {}
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None
    whole: bool = False

    @property
    def traits(self) -> set[str]:
        """All that it names."""
        return set().union(self.forbidden, *self.required)


class CandidatesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Groups that are to fit together, each by its suffix once.

    :ivar isolate: the providers of groups with a suffix differ from each other
    :ivar apart: sets of suffixes; the providers of such groups differ from each other
    :ivar once: of answers in which groups that are equal have changed places, only one
    :ivar same_subtree: sets of suffixes; of the providers of such groups one is above the others
    :ivar root_required: traits of the root; ``root_forbidden`` likewise
    :ivar limit: the best of so many at most; None: all there are, in no order
    :ivar nested: False: of each tree only one provider, for who knows nothing of trees
    """

    groups: tuple[GroupQuery, ...]
    isolate: bool = False
    apart: tuple[frozenset[str], ...] = ()
    once: bool = False
    same_subtree: tuple[frozenset[str], ...] = ()
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()
    limit: int | None = None
    nested: bool = True

    def parts(self) -> 'Iterator[Part]':
        """What each comes from one provider."""
        for group in self.groups:
            if group.suffix:
                amounts = tuple(group.resources.items())
                yield Part(group=group, amounts=amounts, whole=group.whole)
                continue
            for item in group.resources.items():
                yield Part(group=group, amounts=(item,))


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What has to come from one provider: a whole group, or one class of that without suffix.

    :ivar amounts: class and amount
    :ivar whole: of the one class all that a provider has, of which nothing may be used
    """

    group: GroupQuery
    amounts: tuple[tuple[str, int], ...]

    whole: bool = False

    @property
    def suffix(self) -> str:
        return self.group.suffix


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
