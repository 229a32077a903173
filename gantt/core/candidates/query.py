# SPDX-License-Identifier: Apache-2.0
"""Query of candidates: groups of resources, and the conditions on all of them."""

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from gantt.core.messages.tree_request import ResourceGroup, TreeRequest

#: The trait of a provider that serves the trees which have a provider in one of its aggregates.
SHARES_TRAIT = 'MISC_SHARES_VIA_AGGREGATE'
#: No two groups with a suffix on one provider.
ISOLATE = 'isolate'


class GroupQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Resource group: without suffix each class may have its own provider, else all share one.

    :ivar resources: class -> amount, at least 1; empty only with a suffix
    :ivar required: sets of traits, one of each is required
    :ivar member_of: sets of aggregates by uuid, one of each is required
    :ivar in_tree: uuid of a provider whose tree it has to be
    :ivar whole: take all that a provider has of its one class, at least the amount, none of it used
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
        """Union of all traits that the group names."""
        return set().union(self.forbidden, *self.required)


class CandidatesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Groups that are to fit together, each by its suffix once.

    :ivar isolate: the providers of groups with a suffix differ from each other
    :ivar apart: sets of suffixes; the providers of such groups differ from each other
    :ivar once: return one of the candidates that differ only in the order of equal groups
    :ivar same_subtree: sets of suffixes; of the providers of such groups one is above the others
    :ivar root_required: traits of the root; ``root_forbidden`` likewise
    :ivar limit: the largest number of candidates, the best ones; None: all there are, in no order
    :ivar nested: False: only one provider of each tree, for clients without nested providers
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
        """Yield the parts, each of which comes from one provider."""
        for group in self.groups:
            if group.suffix:
                amounts = tuple(group.resources.items())
                yield Part(group=group, amounts=amounts, whole=group.whole)
                continue
            for item in group.resources.items():
                yield Part(group=group, amounts=(item,))


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Part that has to come from one provider: a whole group, or one class without suffix.

    :ivar amounts: class and amount
    :ivar whole: take all that a provider has of the one class, none of it used
    """

    group: GroupQuery
    amounts: tuple[tuple[str, int], ...]

    whole: bool = False

    @property
    def suffix(self) -> str:
        return self.group.suffix


#: Returns the uuids of the aggregates that have a uuid or a name.
ResolveAggregate = Callable[[str], frozenset[str]]


def query_of(
    resources: Mapping[str, int],
    tree: TreeRequest | None,
    nested: Collection[str],
    find: ResolveAggregate,
) -> CandidatesQuery:
    """Return the query for the best candidate of one tree.

    It has those classes of the group without a suffix that may lie below the root, or that other
    groups take as well.  For the other classes the columns of each host decide.

    :param nested: classes that a provider below a host has
    """
    groups = [] if tree is None else list(tree.expanded())
    grouped = {name for group in groups for name in group.group.resources}
    spread = {name: n for name, n in resources.items() if name in nested or name in grouped}
    queries = [GroupQuery(resources=spread)] if spread else []
    queries += [_group(group.suffix, group.group, group.whole, find) for group in groups]
    return CandidatesQuery(
        groups=tuple(queries),
        apart=() if tree is None else tuple(tree.distinct()),
        once=True,
        same_subtree=() if tree is None else tuple(map(frozenset, tree.same_subtree)),
        limit=1,
    )


def _group(suffix: str, group: ResourceGroup, whole: bool, find: ResolveAggregate) -> GroupQuery:
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
