# SPDX-License-Identifier: Apache-2.0
"""Placement's model as either side of a comparison has it, and the port to a side."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

import msgspec

from gantt.core.messages.resource_classes import Inventory

#: Of consumers that nobody gave an owner: what Placement's configuration has by default.
NOBODY = '00000000-0000-0000-0000-000000000000'
#: The type of consumers of which none is known.
UNKNOWN_TYPE = 'unknown'
#: What stands for "as much as there is" in ``max_unit``.
INT_MAX = 2_147_483_647
CUSTOM = 'CUSTOM_'

#: provider's uuid -> class -> amount
Amounts = dict[str, dict[str, int]]
#: Receives a line about how far it is.
Progress = Callable[[str], None]


class ProviderOutline(msgspec.Struct, frozen=True, kw_only=True):
    """What the list of providers has of each."""

    uuid: str
    name: str
    generation: int
    parent: str | None = None


class ProviderContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider has, as of one generation.

    :ivar inventories: of each class of which there is something
    """

    generation: int
    inventories: dict[str, Inventory] = {}
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


class ConsumerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that a consumer has."""

    generation: int
    project_id: str = NOBODY
    user_id: str = NOBODY
    consumer_type: str = UNKNOWN_TYPE
    allocations: Amounts = {}

    def same_as(self, other: 'ConsumerRecord | None') -> bool:
        """Whether all but the generation is equal."""
        return other is not None and other == msgspec.structs.replace(
            self, generation=other.generation
        )


class ConsumerUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the providers' lists of allocations have of a consumer."""

    generation: int
    allocations: Amounts


class SavedConsumer(NamedTuple):
    """Whether anything was written; what was left as it is, and why, else nothing."""

    is_written: bool
    problem: str = ''


class Snapshot(msgspec.Struct, kw_only=True):
    """All that one side has, and is compared: of classes and traits the custom ones."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    outlines: dict[str, ProviderOutline] = {}
    contents: dict[str, ProviderContent] = {}
    uses: dict[str, ConsumerUse] = {}
    consumers: dict[str, ConsumerRecord] = {}


class PlacementSide(Protocol):
    """One side.  ``name`` says which, for people.

    Readers raise ``Unavailable`` and ``InvalidMessage``, which names the URL and the field.
    Writers raise ``Refused`` where the answer is no; what they are given has been read before, and
    a generation that is not the current one any more is refused so.
    """

    name: str

    def classes(self) -> frozenset[str]:
        """Custom ones."""

    def traits(self) -> frozenset[str]:
        """Custom ones."""

    def outlines(self) -> dict[str, ProviderOutline]:
        """All providers, by uuid."""

    def content(self, uuid: str) -> ProviderContent | None:
        """None: there is no such provider any more."""

    def uses(self, uuid: str) -> dict[str, tuple[int, dict[str, int]]]:
        """Consumer -> its generation, and class -> amount; of a provider that is gone nothing."""

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """None: it has nothing."""

    def create_class(self, name: str) -> None: ...

    def create_trait(self, name: str) -> None: ...

    def create_provider(self, wanted: ProviderOutline) -> ProviderOutline:
        """As it is then."""

    def update_provider(self, wanted: ProviderOutline) -> None:
        """Name and parent."""

    def save_inventories(
        self, uuid: str, inventories: Mapping[str, Inventory], generation: int
    ) -> int:
        """Exactly these; the generation after it."""

    def save_traits(self, uuid: str, traits: Collection[str], generation: int) -> int:
        """Exactly these; the generation after it."""

    def save_aggregates(self, uuid: str, aggregates: Collection[str], generation: int) -> int:
        """Exactly these; the generation after it."""

    def save_consumer(
        self, uuid: str, wanted: ConsumerRecord, generation: int | None
    ) -> SavedConsumer:
        """Let it have this.

        :param generation: None: it had nothing
        """

    def delete_consumer(self, uuid: str) -> None: ...

    def delete_provider(self, uuid: str) -> None: ...

    def delete_class(self, name: str) -> None: ...

    def delete_trait(self, name: str) -> None: ...


def standardized(inventory: Inventory) -> Inventory:
    """With each number as Placement shows it."""
    most = INT_MAX if inventory.max_unit is None else inventory.max_unit
    return msgspec.structs.replace(
        inventory, max_unit=most, allocation_ratio=float(inventory.allocation_ratio)
    )


def top_down(outlines: Mapping[str, ProviderOutline]) -> list[ProviderOutline]:
    """Each after its parent, by name among equals; where parents lead in a circle, at the end."""
    depths: dict[str, int] = {}
    for uuid in outlines:
        chain: list[str] = []
        one: str | None = uuid
        while one is not None and one in outlines and one not in depths and one not in chain:
            chain.append(one)
            one = outlines[one].parent
        depth = depths.get(one, -1) if one is not None else -1
        if one in chain:
            depth = len(outlines)
        for here in reversed(chain):
            depth += 1
            depths[here] = depth
    return sorted(outlines.values(), key=lambda one: (depths[one.uuid], one.name, one.uuid))
