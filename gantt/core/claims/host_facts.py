# SPDX-License-Identifier: Apache-2.0
"""Facts of an agent next to nova-compute about its host: messages, and pure folds of them.

For a host of an unmodified Nova a report source reports: its guests, the inventory of each
class, whether it is up.  Cells, devices and metrics Nova's APIs do not carry; an agent
on the host sends them by ``update_host_facts``.  Each field has one writer: the agent has ``numa``,
``devices`` and the metrics that it names, the reports have the rest and leave these out.  So
both may come late, repeated and in any order: the messages of the agent are ordered by their
own sequence, and a report keeps fields that it does not contain (``kept``).

An agent cannot tell our guests from others: its figures contain all guests that it has seen, and it
names them.  The layouts of their claims are settled then, so that nothing counts twice; that
of a guest that it has not seen counts as it was laid out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.core.claims.claim import Claim, claim_ids_of_consumer, guest_of
from gantt.core.messages import report as reports
from gantt.core.messages.base import Message, Name, Text, Uuid
from gantt.core.messages.layout import Layout, readable
from gantt.core.messages.report import Cells, HostReport, Metrics, NumaCell, Pools, ReportedMetric
from gantt.core.resources import host_keys
from gantt.core.resources.host import AgentFacts, HostFacts, HostRow, UnreadableFacts
from gantt.core.resources.host_keys import HostKey, Proof, SigningMode

APPLIED, STALE, UNKNOWN_HOST, NOT_OURS = 'applied', 'stale', 'unknown_host', 'refused'
GUESTS_MAX = 10_000
_replace = msgspec.structs.replace


class UpdateHostFacts(Message, frozen=True, kw_only=True):
    """Facts that an agent has read on its host; UNSET: unchanged.

    :ivar sequence: grows with every message, over restarts too: it begins with a clock
    :ivar guests: consumers whose use is in ``numa`` and ``devices``; None: they are not known now,
        and then neither of these fields is sent
    :ivar proof: proof of the agent's key, with the sequence as its number: see ``host_keys``
    """

    host: Name
    sequence: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    guests: Annotated[list[Uuid], msgspec.Meta(max_length=GUESTS_MAX)] | None = None
    numa: Cells | UnsetType = UNSET
    devices: Pools | UnsetType = UNSET
    metrics: Metrics | UnsetType = UNSET
    proof: Text | None = None


class VerifiedFactsUpdate(UpdateHostFacts, frozen=True, kw_only=True):
    """Facts of a host whose sender was checked; never sent.

    :ivar proven: None: it proves nothing
    """

    mode: SigningMode
    proven: Proof | None = None


class UpdateHostFactsResult(Message, frozen=True, kw_only=True):
    """The answer to :class:`UpdateHostFacts`.

    :ivar outcome: applied | stale
    :ivar sequence: last sequence known of the host
    :ivar report_seconds: period in which the agent is to send its facts
    """

    outcome: str
    sequence: int
    report_seconds: int = 60


class FactsEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to write.

    :ivar outcome: applied | stale | unknown_host | refused; all but the first change nothing
    :ivar row: the host as it becomes
    :ivar claims: claims whose layouts the host's figures contain now, or no longer contain
    """

    outcome: str
    row: HostRow
    claims: list[Claim] = []


def check(update: UpdateHostFacts) -> None:
    """Check what types cannot express.

    :raises InvalidMessage: names the field and what was expected
    """
    if update.guests is None and (update.numa is not UNSET or update.devices is not UNSET):
        _refuse('guests', 'expected whose use is in numa and devices; [] where nobody is there')
    reports.check_topology_report(update.numa, update.devices, 'update')
    reports.check_metrics(update.metrics, 'update')
    for name, metric in ({} if update.metrics is UNSET else update.metrics).items():
        if not math.isfinite(metric.value):
            _refuse(f'metrics.{name}.value', f'expected a finite number, got {metric.value}')
        if not 0 <= metric.age_seconds < math.inf:
            _refuse(f'metrics.{name}.age_seconds', f'expected 0 or more, got {metric.age_seconds}')


def report_outcome(row: HostRow, update: UpdateHostFacts) -> str:
    """Return whether the message may be applied to ``row``; see ``FactsEffect.outcome``.

    :raises NotProven: its sender is not the agent that is known of the host
    """
    if row.reporter != 'nova':
        # A host that has registered and sent no report yet may become either.
        return NOT_OURS if row.reported_at else UNKNOWN_HOST
    if isinstance(row.facts, UnreadableFacts):
        return UNKNOWN_HOST
    _check_key(row, update)  # before its sequence: a forged one is an alarm, however old it seems
    last = row.facts.agent
    return STALE if last is not None and update.sequence <= last.sequence else APPLIED


def _check_key(row: HostRow, update: UpdateHostFacts) -> HostKey | None:
    """Return the keys of the host after this message.  :raises NotProven:"""
    if not isinstance(update, VerifiedFactsUpdate):
        return row.key
    return host_keys.key_after_agent_message(row.key, update.host, update.mode, update.proven)


def apply(row: HostRow, live: Sequence[Claim], update: UpdateHostFacts, now: float) -> FactsEffect:
    """Fold one message into its host.

    The generation grows where cells, devices or a layout changed.  The time of the last report
    of the host is set by its reporter alone.

    :param live: the live claims on this host
    :param now: the database's clock
    :raises NotProven: its sender is not the agent that is known of the host
    """
    outcome = report_outcome(row, update)
    if outcome != APPLIED:
        return FactsEffect(outcome=outcome, row=row)
    claims = [] if update.guests is None else _claims_with_changed_layouts(live, update.guests)
    facts = _apply_facts(row, update, now)
    if update.numa is not UNSET:
        changed = {claim.id: claim for claim in claims}
        layouts = (readable(changed.get(claim.id, claim).layout) for claim in live)
        numa = _cells_with_blocked_siblings(
            update.numa, [layout for layout in layouts if layout and layout.reported]
        )
        facts = _replace(facts, numa=numa)
    grown = bool(claims) or (facts.numa, facts.devices) != (row.facts.numa, row.facts.devices)
    row = _replace(
        row,
        key=_check_key(row, update),
        facts=facts,
        version=row.version + 1,
        generation=row.generation + int(grown),
    )
    return FactsEffect(outcome=outcome, row=row, claims=claims)


def merged_facts(
    current: HostFacts, reported: HostFacts, report: HostReport, now: float
) -> HostFacts:
    """Return the facts of a report, with those that an agent sent beside it.

    A reporter that reports cells or devices itself has no agent beside it.
    :param current: facts before the report
    :param reported: as the report alone has them
    :param now: when it is folded, by the database's clock
    """
    agent_facts = current.agent
    if agent_facts is None:
        return reported
    if report.numa is not UNSET or report.devices is not UNSET:
        return _replace(reported, agent=None)
    metrics = {**reported.metrics, **_aged_metrics(agent_facts, now)}
    return _replace(reported, numa=current.numa, devices=current.devices, metrics=metrics)


def _apply_facts(row: HostRow, update: UpdateHostFacts, now: float) -> HostFacts:
    facts, before = row.facts, row.facts.agent
    agent_metrics: Mapping[str, ReportedMetric] = {} if before is None else before.metrics
    others = {name: metric for name, metric in facts.metrics.items() if name not in agent_metrics}
    if update.metrics is not UNSET:
        metrics = dict(update.metrics)
    else:
        metrics = {} if before is None else _aged_metrics(before, now)
    agent_facts = AgentFacts(sequence=update.sequence, reported_at=now, metrics=metrics)
    return _replace(
        facts,
        devices=facts.devices if update.devices is UNSET else update.devices,
        # Ages of metrics count from the host's last report.
        metrics={**others, **_aged_metrics(agent_facts, row.reported_at)},
        agent=agent_facts,
    )


def _aged_metrics(update: AgentFacts, at: float) -> dict[str, ReportedMetric]:
    """Return the metrics with their ages at another time; no age is below 0."""
    since = at - update.reported_at
    return {
        name: _replace(metric, age_seconds=max(0.0, round(metric.age_seconds + since, 3)))
        for name, metric in update.metrics.items()
    }


def _claims_with_changed_layouts(live: Sequence[Claim], guests: Iterable[str]) -> list[Claim]:
    """Return claims whose layout the figures contain now and did not, or the other way round."""
    here: dict[str, list[Claim]] = {}
    for claim in live:
        here.setdefault(guest_of(claim), []).append(claim)
    contained = {
        claim_id
        for consumer in set(guests)
        for claim_id in claim_ids_of_consumer(here.get(consumer, ()))
    }
    changed = []
    for claim in live:
        layout = readable(claim.layout)
        inside = claim.id in contained
        if layout and claim.layout and layout.reported is not inside:
            body = {key: value for key, value in claim.layout.items() if key != 'reported'}
            now = {**body, 'reported': True} if inside else body
            changed.append(_replace(claim, layout=now))
    return changed


def _cells_with_blocked_siblings(numa: list[NumaCell], layouts: Iterable[Layout]) -> list[NumaCell]:
    """Return cells with sibling CPUs marked used that guests block: only layouts have these."""
    cells = {cell.id: cell for cell in numa}
    for layout in layouts:
        for assigned in layout.cells:
            cell = cells.get(assigned.cell)
            own_cpus = {*(cpu for _, cpu in assigned.pins), *assigned.emulator}
            if cell is None or not assigned.blocked or not own_cpus <= set(cell.used_pinned_cpus):
                continue  # it was pinned otherwise than it was laid out
            blocked = set(assigned.blocked) & set(cell.pinned_cpus)
            used = sorted(blocked.union(cell.used_pinned_cpus))
            cells[cell.id] = _replace(cell, used_pinned_cpus=used)
    return [cells[cell.id] for cell in numa]


def _refuse(field: str, problem: str) -> None:
    raise exceptions.invalid(f'update.{field}', problem)
