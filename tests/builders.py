# SPDX-License-Identifier: Apache-2.0
"""Fluent builders: state what matters for a test, the rest has defaults.

A builder never changes; every call returns a new one, ``build()`` the message.
``a_host(...).on(store)`` is a compute host that speaks to a store by itself.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec
from msgspec import UNSET

from gantt import exceptions
from gantt.core.claims.claim import Claim, State, claim_id
from gantt.core.claims.commit import (
    ClaimColumns,
    ClaimDraft,
    CommitResult,
    DecisionRecord,
    GroupPrecondition,
    RequestDraft,
    RequestOutcome,
)
from gantt.core.claims.reconcile import Registration
from gantt.core.messages.base import derived_id
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost, Running
from gantt.core.messages.request import (
    GroupRef,
    Lifecycle,
    Policy,
    Purpose,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Group, HostRow
from gantt.core.resources.provider import ProviderFilter, ResourceProvider
from gantt.scheduler.ports.hosts import ReportOutcome
from gantt.scheduler.ports.requests import ClaimOutcome
from gantt.stores import AllStores

CLASSES = {'vcpu': 'VCPU', 'pcpu': 'PCPU', 'ram': 'MEMORY_MB', 'disk': 'DISK_GB'}
#: The audit of a store that is in order.
KINDS_OF_FINDINGS = ('over_commit', 'lost', 'leaked', 'doubled', 'providers')
CLEAN: dict[str, list[str]] = {kind: [] for kind in KINDS_OF_FINDINGS}


def new_uuid() -> str:
    """Return a new uuid."""
    return str(uuid.uuid4())


def uuid_of(*parts: object) -> str:
    """Return the uuid of a name: the same in every run."""
    return derived_id('test', *parts)


def amounts(**short: int) -> dict[str, int]:
    """Return ``vcpu=2, ram=1024`` by resource class; other names are classes themselves."""
    return {CLASSES.get(name, name): amount for name, amount in short.items()}


class Builder:
    """A collection of message fields."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def having(self, **fields: Any) -> Self:
        """Return the same with these fields of the message."""
        return type(self)(**{**self.fields, **fields})


# -- requests --------------------------------------------------------------------------
class ARequest(Builder):
    """Builder of ``SelectDestinations``."""

    def needing(self, **short: int) -> Self:
        return self.having(resources=amounts(**short))

    def for_consumers(self, *consumers: str) -> Self:
        return self.having(consumers=list(consumers))

    def in_group(self, group: str, policy: str = 'anti-affinity') -> Self:
        return self.having(group=GroupRef(uuid=group, policy=Policy(policy)))

    def build(self) -> SelectDestinations:
        fields = {'resources': amounts(vcpu=1), 'request_id': new_uuid(), **self.fields}
        fields.setdefault('consumers', [new_uuid()])
        top = {k: fields.pop(k) for k in list(fields) if k in SelectDestinations.__struct_fields__}
        return SelectDestinations(spec=RequestSpec(**fields), **top)


def a_request(**fields: Any) -> ARequest:
    """Return a request for one consumer that needs one core."""
    return ARequest(**fields)


# -- drafts of a commit -----------------------------------------------------------------
class ADraft(Builder):
    """Builder of ``RequestDraft``: the placements that a scheduler submits to the store."""

    @property
    def id(self) -> str:
        return self.fields['id']

    def taking(
        self,
        host: 'Host | int',
        consumer: str | None = None,
        *,
        generation: int | None = None,
        purpose: str = 'create',
        lifecycle: str = 'host',
        move_id: str | None = None,
        group: str | None = None,
        layout: dict | None = None,
        **short: int,
    ) -> Self:
        """Add one more member, on a host."""
        provider_id = host if isinstance(host, int) else host.id
        member = len(self.fields['claims']) + self.fields.get('first_member', 0)
        precondition = self.fields.get('group')
        claim = Claim(
            id=claim_id(self.id, self.fields.get('attempt', 1), member),
            request_id=self.id,
            attempt=self.fields.get('attempt', 1),
            member=member,
            consumer=consumer or uuid_of('consumer', self.id, member),
            provider_id=provider_id,
            host='' if isinstance(host, int) else host.name,
            lifecycle=Lifecycle(lifecycle),
            purpose=Purpose(purpose),
            allocations={provider_id: amounts(**(short or {'vcpu': 1}))},
            group=group or (precondition.uuid if precondition else None),
            move_id=move_id,
            layout=layout,
            project_id=self.fields.get('project_id'),
        )
        draft = ClaimDraft(claim=claim, generation=generation)
        return self.having(claims=[*self.fields['claims'], draft])

    def by(self, owner: str) -> Self:
        return self.having(owner=owner)

    def leased(self, seconds: float) -> Self:
        """Set the seconds of the lease; below 0: it has run out when it begins."""
        return self.having(lease_seconds=seconds)

    def within(self, seconds: float) -> Self:
        """Set the seconds to the deadline; below 0: it has passed when the row is written."""
        return self.having(budget_seconds=seconds)

    def unfinished(self) -> Self:
        """Mark the draft as unfinished: other members are to follow in a later batch."""
        return self.having(completes=False)

    def whole(self) -> Self:
        return self.having(whole=True)

    def attempt(self, number: int) -> Self:
        return self.having(attempt=number)

    def taking_over(self, attempt: int) -> Self:
        return self.having(takes_over=attempt, attempt=attempt + 1)

    def continuing(self, count: int) -> Self:
        """Continue with its row; ``count`` members were claimed before."""
        return self.having(continues=True, first_member=count, claims=[])

    def planned_at(self, generation: int, group: str, policy: str = 'anti-affinity') -> Self:
        """Place in a server group, planned with its rule at that generation."""
        return self.having(
            group=GroupPrecondition(uuid=group, generation=generation, policy=policy)
        )

    def build(self) -> RequestDraft:
        fields = {k: v for k, v in self.fields.items() if k != 'first_member'}
        return RequestDraft(**{**fields, 'claims': ClaimColumns.of(fields['claims'])})


def a_draft(request_id: str | None = None, **fields: Any) -> ADraft:
    """Return a request of worker-1, without members yet, answered with b'answer'."""
    base: dict[str, Any] = {
        'id': request_id or new_uuid(),
        'fingerprint': 'body',
        'owner': 'worker-1',
        'claims': [],
        'answer': b'answer',
    }
    return ADraft(**{**base, **fields})


def commit(store: AllStores, *drafts: ADraft) -> CommitResult:
    """Commit one batch."""
    return store.requests.commit([draft.build() for draft in drafts])


def report_outcome(store: AllStores, draft: ADraft) -> RequestOutcome:
    """Commit a draft alone."""
    return commit(store, draft).outcomes[0]


def claimed(store: AllStores, draft: ADraft) -> list[Claim]:
    """Commit a draft alone, which must be placed; its claims by member."""
    fate = report_outcome(store, draft)
    assert fate.outcome == 'placed', fate
    return sorted(store.claims.list_claims(request_id=draft.id), key=lambda claim: claim.member)


def a_decision(**fields: Any) -> DecisionRecord:
    """Return a refusal."""
    base: dict[str, Any] = {
        'id': new_uuid(),
        'request_id': new_uuid(),
        'outcome': 'no_valid_host',
        'packed': b'packed',
        'host_set': 'digest',
        'provider_ids': b'12345678',
    }
    return DecisionRecord(**{**base, **fields})


def a_group(policy: str = 'anti-affinity', **fields: Any) -> Group:
    """Return a server group without members."""
    return Group(**{'uuid': new_uuid(), 'policy': policy, **fields})


# -- reports ------------------------------------------------------------------------------
class AReport(Builder):
    """Builder of ``HostReport``."""

    def at(self, epoch: int, sequence: int) -> Self:
        return self.having(epoch=epoch, sequence=sequence)

    def with_room(self, **short: int) -> Self:
        """Set totals, nothing reserved, no overcommit."""
        return self.having(
            inventories={name: Inventory(total=x) for name, x in amounts(**short).items()}
        )

    def listing(self, running: Iterable[Any] = (), pending: Iterable[Any] = ()) -> Self:
        """List claims, or consumers of no claim; all others are not there."""
        return self.having(
            running=[a_guest(guest) for guest in running],
            pending=[a_guest(guest) for guest in pending],
        )

    def without_opinion(self) -> Self:
        return self.having(running=None, pending=None)

    def outside(self, **short: int) -> Self:
        """Set the amounts used outside any claim."""
        return self.having(foreign=amounts(**short))

    def using(self, **short: int) -> Self:
        """Set the amounts used in all, guests included."""
        return self.having(used=amounts(**short))

    def since(self, base: int) -> Self:
        """Make a delta on that full report; fields that it leaves out are unchanged."""
        kept = {k: v for k, v in self.fields.items() if k != 'inventories'}
        return type(self)(**{**kept, 'full': False, 'base': base})

    def build(self) -> HostReport:
        return HostReport(**self.fields)


def a_report(name: str = 'cmp-1', **fields: Any) -> AReport:
    """Return a full report of 8 cores, 16 GiB and 100 GiB with nothing on it."""
    base: dict[str, Any] = {
        'name': name,
        'epoch': 1,
        'sequence': 1,
        'full': True,
        'running': [],
        'pending': [],
    }
    return AReport(**{**base, **fields}).with_room(vcpu=8, ram=16_384, disk=100)


def a_guest(guest: 'Claim | Running | str', **short: int) -> Running:
    """Return an entry of a report: of a claim, of a consumer without one, or as it is."""
    if isinstance(guest, Running):
        return guest
    if isinstance(guest, Claim):
        return Running(consumer=guest.consumer, claim_id=guest.id)
    return Running(consumer=guest, resources=amounts(**(short or {'vcpu': 1})))


# -- hosts ------------------------------------------------------------------------------
class AHost:
    """A compute host that has not registered yet."""

    def __init__(self, name: str, report: AReport) -> None:
        self.name = name
        self.facts = report

    def with_room(self, **short: int) -> 'AHost':
        return AHost(self.name, self.facts.with_room(**short))

    def having(self, **fields: Any) -> 'AHost':
        """Set these fields in each of its reports."""
        return AHost(self.name, self.facts.having(**fields))

    def on(self, store: AllStores, **said: Any) -> 'Host':
        """Register the host on a store, with a first report."""
        host = Host(store, self.name, self.facts)
        host.register(**said)
        assert host.report().outcome == 'applied'
        return host

    def at_work(self, store: AllStores, row: dict[str, Any]) -> 'Host':
        """Return a host that registered long ago and goes on where ``row`` states."""
        host = Host(store, self.name, self.facts)
        host.id, host.epoch, host.sequence = row['id'], row['epoch'], row['sequence']
        return host


def a_host(name: str = 'cmp-1') -> AHost:
    """Return a host of 8 cores, 16 GiB and 100 GiB."""
    return AHost(name, a_report(name))


def register_host(store: AllStores, message: RegisterHost) -> Registration:
    """Register one host.

    :raises GanttError: the reason why it was not
    """
    (outcome,) = store.reports.register_hosts([message])
    if isinstance(outcome, exceptions.GanttError):
        raise outcome
    return outcome


def list_providers(store: AllStores, **criteria: Any) -> list[ResourceProvider]:
    """Return providers with their inventories, hosts among them, by uuid.

    :param criteria: of ``ProviderFilter``
    """
    records = store.providers.find_providers(ProviderFilter(**criteria))
    loaded = [store.providers.load_provider(uuid) for uuid in sorted(r.uuid for r in records)]
    return [provider for provider in loaded if provider is not None]


def set_inventories(
    store: AllStores, uuid: str, inventories: Mapping[str, Inventory]
) -> ResourceProvider:
    """Replace the inventories of a provider, whose custom classes are declared for that."""
    for name in inventories:
        if name.startswith('CUSTOM_'):
            store.vocabulary.declare_class(name)
    return store.providers.change_inventories(uuid, lambda now: inventories)


class Host:
    """A host that reports to a store; it counts its messages as an agent does."""

    def __init__(self, store: AllStores, name: str, facts: AReport) -> None:
        self.store = store
        self.name = name
        self.facts = facts
        self.epoch = 0
        self.sequence = 0
        self.id = 0

    def register(self, nonce: str | None = None, **fields: Any) -> int:
        """Register a new start of the agent; return its epoch."""
        message = RegisterHost(name=self.name, boot_nonce=nonce or new_uuid(), **fields)
        registered, change = register_host(self.store, message)
        self.id = change.provider_id
        if registered.epoch != self.epoch:
            self.epoch, self.sequence = registered.epoch, 0
        return self.epoch

    def stamp(self) -> int:
        """Return the next number."""
        self.sequence += 1
        return self.sequence

    @property
    def row(self) -> HostRow:
        """Row of the host as readers see it."""
        rows = {
            change.provider_id: change.row for change in self.store.feed.load_everything().hosts
        }
        row = rows[self.id]
        assert row is not None
        return row

    def says(self) -> AReport:
        """Return the next report, to be completed."""
        return self.facts.at(self.epoch, self.stamp())

    def send(self, *reports: AReport) -> list[ReportOutcome]:
        """Deliver reports in one batch."""
        return self.store.reports.apply_reports([report.build() for report in reports]).outcomes

    def report(self, running: Iterable[Any] = (), pending: Iterable[Any] = ()) -> ReportOutcome:
        """Report truthfully what is there."""
        return self.send(self.says().listing(running, pending))[0]

    def words(self, *claims: Claim | str, **fields: Any) -> ClaimUpdate:
        """Return an update of claims, with the next number unless one is given."""
        base: dict[str, Any] = {
            'name': self.name,
            'epoch': self.epoch,
            'sequence': fields.get('sequence') or self.stamp(),
            'claim_ids': [claim.id if isinstance(claim, Claim) else claim for claim in claims],
        }
        return ClaimUpdate(**{**base, **fields})

    def confirm(self, *claims: Claim | str, **fields: Any) -> list[ClaimOutcome]:
        return self.store.claims.confirm_claims(self.words(*claims, **fields)).outcomes

    def refuse(self, *claims: Claim | str, **fields: Any) -> list[ClaimOutcome]:
        return self.store.claims.refuse_claims(self.words(*claims, **fields)).outcomes

    def release(self, *claims: Claim | str, **fields: Any) -> list[ClaimOutcome]:
        return self.store.claims.release_claims(self.words(*claims, **fields)).outcomes


def state_of(store: AllStores, claim: Claim | str) -> State:
    """Return the state of a claim as it is now."""
    claim_row = store.claims.load_claim(claim.id if isinstance(claim, Claim) else claim)
    assert claim_row is not None
    return claim_row.state


def generation_of(store: AllStores, group: str) -> int:
    """Return the generation of a server group as it is now; 0: there is none."""
    group_row = store.groups.load_group(group)
    return group_row.generation if group_row is not None else 0


def live(store: AllStores, **where: Any) -> list[Claim]:
    """Return live claims."""
    return [claim for claim in store.claims.list_claims(limit=10_000, **where) if claim.is_live]


def changed(message: Any, **fields: Any) -> Any:
    """Return the same message with other fields."""
    return msgspec.structs.replace(message, **fields)


__all__ = [
    'CLEAN',
    'UNSET',
    'a_decision',
    'a_draft',
    'a_group',
    'a_guest',
    'a_host',
    'a_report',
    'a_request',
    'amounts',
    'changed',
    'claimed',
    'commit',
    'report_outcome',
    'generation_of',
    'live',
    'new_uuid',
    'state_of',
    'uuid_of',
]
