# SPDX-License-Identifier: Apache-2.0
"""Small clouds of trees and pools with use, and queries for candidates in them, by chance."""

import random
import uuid

import msgspec

from gantt.core.candidates.query import SHARES_TRAIT, CandidatesQuery, GroupQuery
from gantt.core.candidates.table import ClassInventory, ProviderEntry

CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB', 'SRIOV_NET_VF', 'CUSTOM_A')
TRAITS = ('HW_CPU_X86_AVX', 'HW_CPU_X86_SSE', 'STORAGE_DISK_SSD', 'CUSTOM_GOLD')


def id_of(random_: random.Random) -> str:
    return str(uuid.UUID(int=random_.getrandbits(128), version=4))


class CandidateWorld:
    """Providers and queries, the same for the same seed.

    :ivar entries: id -> provider
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.aggregates = [id_of(self.random) for _ in range(3)]
        self.entries: dict[int, ProviderEntry] = {}
        nested = self.random.random() < 0.7
        sharing = self.random.random() < 0.6
        for _ in range(self.random.randint(1, 4)):
            self._add_tree(nested)
        for _ in range(self.random.randint(1, 2) if sharing else 0):
            self._add(None, (SHARES_TRAIT,), self.random.randint(1, 2))

    def _add_tree(self, nested: bool) -> None:
        tree = [self._add(None)]
        for _ in range(self.random.randint(0, 3) if nested else 0):
            tree.append(self._add(self.random.choice(tree)))

    def _add(self, parent: int | None, traits: tuple[str, ...] = (), aggregates: int = 0) -> int:
        pick = self.random
        pid = len(self.entries) + 1
        some = pick.sample(TRAITS, pick.choice([0, 0, 1, 2]))
        inside = pick.sample(self.aggregates, aggregates or pick.choice([0, 0, 1, 2]))
        self.entries[pid] = ProviderEntry(
            id=pid,
            uuid=id_of(pick),
            parent_id=parent,
            root_id=pid if parent is None else self.entries[parent].root_id,
            traits=tuple(sorted({*some, *traits})),
            aggregates=tuple(sorted(inside)),
            inventories=self.inventories(),
        )
        return pid

    def inventories(self) -> dict[str, ClassInventory]:
        pick = self.random
        inventories = {}
        for name in pick.sample(CLASSES, pick.choice([2, 3, 4, 5])):
            cap = pick.randint(1, 8)
            inventory = ClassInventory(
                cap=cap,
                min_unit=pick.choice([1, 1, 1, 1, 2]),
                max_unit=max(2, pick.choice([cap, cap, cap, 2, 3])),
                step_size=pick.choice([1, 1, 1, 1, 2]),
            )
            used = pick.choice([0, 0, 0, 0, 1, 2, cap])
            if (
                inventory.min_unit <= used <= min(cap, inventory.max_unit)
                and used % inventory.step_size == 0
            ):
                inventory = msgspec.structs.replace(inventory, used=used)  # by one consumer
            inventories[name] = inventory
        return inventories

    def change(self) -> ProviderEntry:
        """One provider becomes another, in its place."""
        pick = self.random
        pid = pick.choice(list(self.entries))
        entry = self.entries[pid]
        changed = msgspec.structs.replace(
            entry,
            version=entry.version + 1,
            traits=tuple(
                sorted(set(pick.sample(TRAITS, 1)) | (set(entry.traits) & {SHARES_TRAIT}))
            ),
            aggregates=tuple(sorted(pick.sample(self.aggregates, pick.choice([0, 1])))),
            inventories=self.inventories(),
        )
        self.entries[pid] = changed
        return changed

    # -- queries -------------------------------------------------------------------------
    def _group(self, suffix: str, classes: list[str]) -> GroupQuery:
        pick = self.random
        required = [frozenset(pick.sample(TRAITS, pick.choice([1, 1, 2])))]
        forbidden = frozenset(pick.sample(TRAITS, 1))
        some = frozenset(pick.sample(self.aggregates, pick.choice([1, 2])))
        return GroupQuery(
            suffix=suffix,
            resources={name: pick.choice([1, 1, 1, 2, 3]) for name in classes},
            required=tuple(required) if pick.random() < 0.2 else (),
            forbidden=forbidden - required[0] if pick.random() < 0.15 else frozenset(),
            member_of=(some,) if pick.random() < 0.12 else (),
            forbidden_aggregates=some if pick.random() < 0.1 else frozenset(),
            in_tree=self._in_tree(),
        )

    def _in_tree(self) -> str | None:
        if self.random.random() < 0.9:
            return None
        return self.random.choice(list(self.entries.values())).uuid

    def query(self) -> CandidatesQuery:
        """In the way of both: no class of the group without suffix in the others."""
        pick = self.random
        classes = pick.sample(CLASSES, len(CLASSES))
        groups = []
        if pick.random() < 0.75:
            groups.append(self._group('', [classes.pop() for _ in range(pick.randint(1, 2))]))
        suffixes = [f'_{n}' for n in range(pick.choice([0, 1, 1, 2, 3]) if groups else 2)]
        for suffix in suffixes:
            groups.append(self._group(suffix, pick.sample(classes, pick.choice([1, 1, 2]))))
        same = []
        if suffixes and pick.random() < 0.3:
            bare = self._group('_bare', [])
            if bare.required or bare.member_of:
                groups.append(bare)
                suffixes.append('_bare')
                same.append(frozenset({'_bare', *pick.sample(suffixes[:-1], 1)}))
        if len(suffixes) > 1 and pick.random() < 0.3:
            same.append(frozenset(pick.sample(suffixes, 2)))
        return CandidatesQuery(
            groups=tuple(groups),
            isolate=pick.random() < 0.4,
            same_subtree=tuple(same),
            root_required=frozenset(pick.sample(TRAITS, 1) if pick.random() < 0.07 else ()),
            root_forbidden=frozenset(pick.sample(TRAITS, 1) if pick.random() < 0.1 else ()),
        )
