# SPDX-License-Identifier: Apache-2.0
"""Placement's model as either side of a comparison has it, and the port to a side."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

import msgspec

from gantt.core.messages.resource_classes import Inventory

#: Owner of consumers without one: the default of Placement's configuration.
PLACEHOLDER_OWNER = '00000000-0000-0000-0000-000000000000'
#: Type of consumers whose type is unknown.
UNKNOWN_TYPE = 'unknown'
#: Value of ``max_unit`` that means "as much as there is".
INT_MAX = 2_147_483_647
CUSTOM_PREFIX = 'CUSTOM_'

#: provider's uuid -> class -> amount
Amounts = dict[str, dict[str, int]]
#: Receives a line about the progress.
Progress = Callable[[str], None]


class ProviderOutline(msgspec.Struct, frozen=True, kw_only=True):
    """Provider as the list of providers has it."""

    uuid: str
    name: str
    generation: int
    parent: str | None = None


class ProviderContent(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a provider, as of one generation.

    :ivar inventories: those of classes with a total above 0
    """

    generation: int
    inventories: dict[str, Inventory] = {}
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


class ConsumerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Allocations of a consumer, and its owner."""

    generation: int
    project_id: str = PLACEHOLDER_OWNER
    user_id: str = PLACEHOLDER_OWNER
    consumer_type: str = UNKNOWN_TYPE
    allocations: Amounts = {}

    def same_as(self, other: 'ConsumerRecord | None') -> bool:
        """Return whether all but the generation is equal."""
        return other is not None and other == msgspec.structs.replace(
            self, generation=other.generation
        )


class ConsumerUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use by a consumer, from the providers' lists of allocations."""

    generation: int
    allocations: Amounts


class SavedConsumer(NamedTuple):
    """Result of a write: whether anything was written; what stays unchanged and why, or ''."""

    is_written: bool
    problem: str = ''


class Snapshot(msgspec.Struct, kw_only=True):
    """Snapshot of all that one side has and that is compared; only custom classes and traits."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    outlines: dict[str, ProviderOutline] = {}
    contents: dict[str, ProviderContent] = {}
    uses: dict[str, ConsumerUse] = {}
    consumers: dict[str, ConsumerRecord] = {}


class PlacementSide(Protocol):
    """Port to one side; ``name`` is for people.

    Readers raise ``Unavailable`` and ``InvalidMessage``, which names the URL and the field.
    Writers raise ``Refused`` where the write is refused; their arguments have been read before, and
    a generation that is not current any more is refused so.
    """

    name: str

    def classes(self) -> frozenset[str]:
        """Return the custom classes."""

    def traits(self) -> frozenset[str]:
        """Return the custom traits."""

    def outlines(self) -> dict[str, ProviderOutline]:
        """Return all providers, by uuid."""

    def content(self, uuid: str) -> ProviderContent | None:
        """Return the content of a provider; None: it does not exist any more."""

    def uses(self, uuid: str) -> dict[str, tuple[int, dict[str, int]]]:
        """Return consumer -> (generation, class -> amount); empty for a deleted provider."""

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """Return a consumer's record; None: it has no allocations."""

    def create_class(self, name: str) -> None: ...

    def create_trait(self, name: str) -> None: ...

    def create_provider(self, outline: ProviderOutline) -> ProviderOutline:
        """Create a provider; return it as created."""

    def update_provider(self, outline: ProviderOutline) -> None:
        """Change name and parent."""

    def save_inventories(
        self, uuid: str, inventories: Mapping[str, Inventory], generation: int
    ) -> int:
        """Replace all inventories; return the new generation."""

    def save_traits(self, uuid: str, traits: Collection[str], generation: int) -> int:
        """Replace all traits; return the new generation."""

    def save_aggregates(self, uuid: str, aggregates: Collection[str], generation: int) -> int:
        """Replace all aggregates; return the new generation."""

    def save_consumer(
        self, uuid: str, record: ConsumerRecord, generation: int | None
    ) -> SavedConsumer:
        """Replace a consumer's allocations and owner.

        :param generation: None: the consumer had no allocations
        """

    def delete_consumer(self, uuid: str) -> None: ...

    def delete_provider(self, uuid: str) -> None: ...

    def delete_class(self, name: str) -> None: ...

    def delete_trait(self, name: str) -> None: ...


def standardized(inventory: Inventory) -> Inventory:
    """Return an inventory with each number as Placement shows it."""
    max_unit = INT_MAX if inventory.max_unit is None else inventory.max_unit
    return msgspec.structs.replace(
        inventory, max_unit=max_unit, allocation_ratio=float(inventory.allocation_ratio)
    )


def top_down(outlines: Mapping[str, ProviderOutline]) -> list[ProviderOutline]:
    """Return providers, each after its parent, then by name; those in a circle of parents last."""
    depths: dict[str, int] = {}
    for uuid in outlines:
        chain: list[str] = []
        current: str | None = uuid
        while (
            current is not None
            and current in outlines
            and current not in depths
            and current not in chain
        ):
            chain.append(current)
            current = outlines[current].parent
        depth = depths.get(current, -1) if current is not None else -1
        if current in chain:
            depth = len(outlines)
        for ancestor in reversed(chain):
            depth += 1
            depths[ancestor] = depth
    return sorted(
        outlines.values(), key=lambda outline: (depths[outline.uuid], outline.name, outline.uuid)
    )
