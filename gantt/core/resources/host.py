# SPDX-License-Identifier: Apache-2.0
"""A host as the database stores it: the source of the host table.

``generation`` grows with every change of usage or of a fact (a layout chosen
at one generation is void at another); ``version`` grows with every write and
orders the reads of one row.  There are hundreds of thousands of these objects and no
cycles among them, hence ``gc=False``: the garbage collector need not traverse them, which
it would do in the middle of a decision.
"""

import enum
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages import policy_set
from gantt.core.messages.layout import Layout
from gantt.core.messages.policy_set import POLICIES_POLICY, LevelPolicy, Policy, PolicySet
from gantt.core.messages.report import DevicePool, Hypervisor, NumaCell, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule, HasGroupRule
from gantt.core.resources.host_keys import HostKey


class HostKind(enum.StrEnum):
    """Kinds of providers."""

    HOST = 'host'  # it has the record of a host, see ``HostRow``
    POOL = 'pool'  # a root that is not a host
    NESTED = 'nested'  # below another provider


#: ``HostRow.inventories_by`` of a host whose inventories are set via Placement's interface.
INVENTORIES_BY_API = 'api'


class AgentFacts(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """The facts that an agent next to nova-compute sent last; see ``core.claims.host_facts``.

    :ivar sequence: of the message; grows with each message, also over restarts
    :ivar reported_at: seconds of the database's clock
    :ivar metrics: metrics as the agent reported them
    """

    sequence: int
    reported_at: float
    metrics: dict[str, ReportedMetric] = {}


class HostFacts(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """Facts that a host reported, beyond usage."""

    inventories: dict[str, Inventory] = {}
    traits: list[str] = []
    location: str = ''
    numa: list[NumaCell] = []
    devices: list[DevicePool] = []
    hypervisor: Hypervisor = Hypervisor()
    metrics: dict[str, ReportedMetric] = {}
    agent: AgentFacts | None = None  # numa, devices and metrics from an agent


class UnreadableFacts(HostFacts, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """The readable facts of a host with an unreadable record, such as one of a later release.

    Its ``service_disabled`` names the unreadable part.  Until a full report replaces the record,
    nothing is placed there and the record stays as it is.

    :ivar stored: column -> stored value, of columns for which ``HostRow`` has another value
    """

    stored: dict[str, Any] = {}

    @property
    def readable(self) -> HostFacts:
        """Facts that can be read."""
        return HostFacts(**{name: getattr(self, name) for name in HostFacts.__struct_fields__})


class HostRow(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """Complete state of a host.

    :ivar parent: of a provider nested below a pool: the id of its direct parent; else 0
    :ivar used: sum of the live claims' allocations, by class
    :ivar foreign: usage outside of any claim, by class
    :ivar aggregates: uuids of the aggregates it is in
    :ivar disabled: operator's reason, None if enabled
    :ivar service_disabled: the reason that the service itself reported, None if up
    :ivar over_committed: usage exceeds capacity: nothing new is placed there
    :ivar reported_at: seconds of the database's clock; 0: never
    :ivar full_sequence: sequence of the last full report of this epoch
    :ivar journal: of the agent that registered last, if it sent one
    :ivar journal_count: number of its last accepted registration
    """

    id: int
    uuid: str
    name: str
    kind: HostKind = HostKind.HOST
    node: str = ''
    cell: str | None = None
    zone: str | None = None
    build_topic: str = ''  # topic_of(name)
    generation: int = 0
    version: int = 0
    epoch: int = 0
    sequence: int = 0
    full_sequence: int = 0
    boot_nonce: str = ''
    journal: str | None = None
    journal_count: int = 0
    facts: HostFacts = HostFacts()
    used: dict[str, int] = {}
    foreign: dict[str, int] = {}
    aggregates: list[str] = []
    disabled: str | None = None
    disabled_by: str | None = None
    service_disabled: str | None = None
    over_committed: bool = False
    reported_at: float = 0.0
    # 'host': a Gantt agent confirms; 'nova': casts only
    reporter: str = 'host'
    key: HostKey | None = None  # of the agent that reports for it
    # Source of inventories, traits and aggregates: API, or None: the host's reports
    inventories_by: str | None = None
    parent: int = 0

    def cap(self, resource_class: str) -> int:
        """Return the capacity of a class."""
        inventory = self.facts.inventories.get(resource_class)
        return inventory.cap if inventory else 0

    def free(self, resource_class: str) -> int:
        """Return capacity less usage; negative if over-committed."""
        return (
            self.cap(resource_class)
            - self.used.get(resource_class, 0)
            - self.foreign.get(resource_class, 0)
        )

    @property
    def reports_inventories(self) -> bool:
        """True where inventories come from its reports, not from Placement's interface."""
        return self.inventories_by != INVENTORIES_BY_API

    @property
    def is_open(self) -> bool:
        """True where a new claim may be written, liveness aside."""
        return self.disabled is None and self.service_disabled is None and not self.over_committed

    @property
    def membership(self) -> tuple[object, ...]:
        """The fields that its aggregates, its zone and its cell follow from."""
        return self.name, self.cell, self.zone, self.aggregates

    def differs_in_counters_only(self, new: 'HostRow') -> bool:
        """Return whether only counters differ; mostly both rows share their facts."""
        return (
            new.facts is self.facts
            and new.over_committed == self.over_committed
            and new.name == self.name
            and new.node == self.node
            and new.cell == self.cell
            and new.zone == self.zone
            and new.aggregates == self.aggregates
            and new.disabled == self.disabled
            and new.service_disabled == self.service_disabled
        )


class Placed(msgspec.Struct, gc=False, frozen=True):
    """A consumer with a live claim on a host, as group and host hints need it.

    :ivar layout: its layout inside of the host; None: it has plain amounts only
    :ivar image: properties of its image, see :mod:`gantt.core.messages.image_properties`
    :ivar flavor: name of its flavor; None: not known
    :ivar member: name of the member of the group that it is; None: not known
    """

    claim_id: str
    consumer: str
    provider_id: int
    group: str | None = None
    layout: Layout | None = None
    image: str | None = None
    flavor: str | None = None
    member: str | None = None


class HostChange(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """An entry of the feed: the current state of a host, with all claims placed on it.

    ``row`` is None if the host was removed.
    """

    provider_id: int
    row: HostRow | None
    placed: list[Placed] = []


class Aggregate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named set of hosts with metadata; ``availability_zone`` is a key of it."""

    id: int
    uuid: str
    name: str
    metadata: dict[str, str] = {}
    hosts: list[str] = []  # names of service hosts
    generation: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server group: its rule, and the generation that guards its placements.

    :ivar policy: ``policies`` where it has a set of them
    :ivar member_names: of a group that was planned, the names of its members
    :ivar problem: why its rule cannot be read: then nobody is placed in it, and it can be removed
    """

    uuid: str
    name: str = ''
    policy: str
    max_per_host: int = 1
    project_id: str | None = None
    generation: int = 0
    members: list[str] = []
    policies: list[Policy | LevelPolicy] = []
    subgroups: dict[str, list[str]] = {}
    member_names: list[str] = []
    problem: str = ''

    @property
    def rule(self) -> GroupRule:
        """The rule in its comparable form.

        :raises RuleUnreadable: no member may be placed as if the group had no rule
        """
        if self.problem:
            raise exceptions.RuleUnreadable(self.problem)
        if self.policy != POLICIES_POLICY:
            return GroupRule(str(self.policy), self.max_per_host, self.generation)
        rule_policies = PolicySet(
            policies=self.policies, subgroups=self.subgroups, members=self.member_names
        )
        return GroupRule(POLICIES_POLICY, generation=self.generation, policies=rule_policies.text)

    def ruled(self, rule: HasGroupRule) -> 'Group':
        """Return the group with another rule."""
        problem = group_rule.problem_of(rule)
        policies = None if rule.policies is None or problem else policy_set.read(rule.policies)
        return msgspec.structs.replace(
            self,
            policy=str(rule.policy),
            max_per_host=rule.max_per_host,
            policies=[] if policies is None else policies.policies,
            subgroups={} if policies is None else policies.subgroups,
            member_names=[] if policies is None else policies.members,
            problem=problem,
        )
