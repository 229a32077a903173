# SPDX-License-Identifier: Apache-2.0
"""Every error that Gantt raises, with its stable code.

Below :class:`GanttError` are ``Refused`` (the answer is no), ``Conflict`` (others were faster),
``Unavailable`` (a dependency is away, or too little is known), ``Misconfigured`` and ``Bug``.

``code`` is used in JSON, logs, metrics and the documentation and never
changes its meaning.  ``kwargs`` travels with the error over RPC: an error is
rebuilt at the caller as ``cls(*args, **kwargs)``.
"""

from collections.abc import Sequence


class GanttError(Exception):
    """Base of all errors of Gantt."""

    code = 'gantt.error'
    http_status = 500
    template = 'Gantt met an error.'

    def __init__(self, message: str | None = None, **kwargs: object) -> None:
        self.kwargs = kwargs
        if message is None:
            message = self.template.format(**kwargs) if kwargs else self.template
        self.message = message
        super().__init__(message)

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON answers: code, message, details."""
        return {'code': self.code, 'message': self.message, 'details': self.kwargs}


class Refused(GanttError):
    """The answer is no; asking again changes nothing."""

    code = 'gantt.refused'
    http_status = 400
    template = 'The request was refused.'


def refused(reason: str, places: Sequence[str] = (), **fields: object) -> Refused:
    """Return a refusal that names hosts or zones, which not every caller may read.

    :param reason: names no place
    :param places: hosts and zones that it is about, each as text
    """
    if not places:
        return Refused(reason, **fields)
    return Refused(f'{reason}: {", ".join(places)}', reason=reason, places=[*places], **fields)


class NoValidHost(Refused):
    """No host fits; the message is the decision's one-line verdict.

    Of a request for a pool its details have the kind, and the message speaks of pools.
    """

    code = 'gantt.no_valid_host'
    http_status = 409
    template = 'No valid {kind} was found. {reason}'

    def __init__(self, message: str | None = None, **kwargs: object) -> None:
        if message is None:
            message = self.template.format(**{'kind': 'host', 'reason': '', **kwargs})
        super().__init__(message, **kwargs)


class NotKnownHere(Refused):
    """Error where no host here has room, and child zones are not queried for such a request."""

    code = 'gantt.not_known_here'
    http_status = 409
    template = 'Not known here. {reason}'


class InvalidMessage(Refused):
    """A field of a message is missing, unknown, of a wrong type or absurd."""

    code = 'gantt.invalid_message'
    template = '{field}: {problem}'


def invalid(field: str, problem: str) -> InvalidMessage:
    """The error of one field of a message."""
    return InvalidMessage(field=field, problem=problem)


class UnknownResourceClass(InvalidMessage):
    """A resource class that is neither standard nor declared."""

    code = 'gantt.unknown_resource_class'
    template = (
        '{field}: resource class {name!r} is neither a standard class nor declared; '
        'expected a standard class such as VCPU or MEMORY_MB, or a declared CUSTOM_ class'
    )


class InvalidRule(InvalidMessage):
    """A rule that is not understood: ``at`` is the character, 0 where there is none."""

    code = 'gantt.invalid_rule'


class UnsupportedVersion(Refused):
    """The sender speaks a major version that this service does not."""

    code = 'gantt.unsupported_version'
    template = (
        '{method}: version {version} is not supported, expected {expected}; upgrade the older side'
    )


class PayloadTooLarge(Refused):
    """A message above the size limit; it was not parsed."""

    code = 'gantt.payload_too_large'
    http_status = 413
    template = 'the message has {size} bytes; at most {limit} are accepted'


class EventsGone(Refused):
    """Error for a query of events from a moment on that this process does not remember any more."""

    code = 'gantt.events_gone'
    http_status = 410
    template = (
        'what happened since {after!r} is not remembered here; list what you need anew, and ask '
        'without "after" for a new cursor'
    )


class QuotaExceeded(Refused):
    """The project has, or would have, more than its quota lets it have."""

    code = 'gantt.quota_exceeded'
    http_status = 403
    template = 'quota {name}: {used} of {limit} used, {requested} requested'


class TooManyRequests(Refused):
    """The project has made more requests than its quota lets it make; carries when to retry."""

    code = 'gantt.too_many_requests'
    http_status = 429
    template = 'quota {name}: {used} of {limit} used, {requested} requested'


class RequestIdReused(Refused):
    """A request id came again with another body."""

    code = 'gantt.request_id_reused'
    http_status = 409
    template = (
        'request_id {request_id} was used before with another body; '
        'choose a new id for a new request'
    )


class RequestCancelled(Refused):
    """The request was cancelled."""

    code = 'gantt.request_cancelled'
    http_status = 409
    template = 'request {request_id} was cancelled'


class NotFound(Refused):
    """Something named does not exist."""

    code = 'gantt.not_found'
    http_status = 404
    template = '{kind} {name!r} was not found'


class InUse(Refused):
    """Error for the removal of something that is in use."""

    code = 'gantt.in_use'
    http_status = 409
    template = 'It is in use.'


class ConsumerChanged(Refused):
    """Error for a write of allocations whose consumer has changed since the writer read it."""

    code = 'gantt.consumer_changed'
    http_status = 409
    template = (
        'consumer {consumer}: generation {given} was given, and it is {expected}; read its '
        'allocations again'
    )


class ConsumerInChildZone(Refused):
    """Error for allocations here of a consumer that has allocations in a child zone."""

    code = 'gantt.consumer_below'
    http_status = 409
    template = (
        'consumer {consumer} has a claim in child zone {zone}, and cannot have another one here; '
        'cancel its request first'
    )


class AllocationRefused(Refused):
    """A provider does not have what is to be allocated."""

    code = 'gantt.allocation_refused'
    http_status = 409
    template = 'provider {provider} cannot give what is to be allocated: {reason}'


class ReportedByHost(Refused):
    """Error for a declaration of what a host reports itself."""

    code = 'gantt.reported_by_host'
    http_status = 409
    template = 'provider {uuid} is host {host!r}: what it has it reports itself'


class StaleGeneration(Refused):
    """Error for a change of a provider whose generation has changed since the writer read it."""

    code = 'gantt.stale_generation'
    http_status = 409
    template = (
        'provider {uuid}: generation {generation} is not the current one ({current}); '
        'read it again, and repeat the change where it is still wanted'
    )


class StaleEpoch(Refused):
    """A message of an older registration of the host, or of one that never happened."""

    code = 'gantt.stale_epoch'
    http_status = 409
    template = (
        'host {host!r}: epoch {epoch} is not the current one ({current}); '
        'the host has registered again since, or must register first'
    )


class StaleRegistration(Refused):
    """A registration that arrives after a later one with the same journal.

    The agent that began it is dead, or its journal was put back to an older state.
    """

    code = 'gantt.stale_registration'
    http_status = 409
    template = (
        'host {host!r}: registration {count} of its journal comes after number {current}; '
        'it changes nothing. Is this agent alive, its journal was put back to an older state'
    )


class HostRenamed(Refused):
    """An agent registers by the name that its host had before it was renamed."""

    code = 'gantt.host_renamed'
    http_status = 409
    template = (
        'host {name!r} was renamed to {new!r}; set the name of its agent to that, '
        'and let it keep its journal'
    )


class HostHeld(Refused):
    """Somebody registers in the name of Nova a host that an agent of its own reports for."""

    code = 'gantt.host_held'
    http_status = 409
    template = (
        'host {host!r}: an agent of its own reports for it (epoch {epoch}, last heard {seconds} s '
        "ago), so nothing is taken from Nova. Is it to be one of Nova's hosts, stop gantt-compute "
        'there, or run it with --facts-only; the host is free {held} s after its last report'
    )


class NotProven(Refused):
    """A message in the name of a host that is not signed with the key of that host."""

    code = 'gantt.not_proven'
    http_status = 409
    template = 'host {host!r}: {problem}; nothing was changed. {fix}'


class ZoneLoop(Refused):
    """A request has come through this zone before."""

    code = 'gantt.zone_loop'
    http_status = 508
    template = (
        'This request has come through this zone before; its parent and child zones form a loop. '
        'Expected a tree: remove one of them'
    )


class NotTrusted(Refused):
    """Error for a field that only a parent zone of the same owner may send."""

    code = 'gantt.zone_not_trusted'
    http_status = 403
    template = (
        '{field}: expected {expected} of a parent zone that is not registered here as trusted'
    )


class OfferGone(GanttError):
    """Error for an offer of a zone that has ended; its other offers may still be valid."""

    code = 'gantt.offer_gone'
    http_status = 409
    template = 'What was offered is gone; evaluate again.'


class AllocationOutdated(GanttError):
    """A parent zone has sent a later allocation for the same consumer, which came before this."""

    code = 'gantt.allocation_outdated'
    http_status = 409
    template = 'A later allocation for one of its consumers has come before it.'


class TokenRefused(Refused):
    """A token that is none of ours, of another request or parent, or too old."""

    code = 'gantt.token_refused'
    http_status = 410
    template = 'The token is not good for this request; evaluate again.'


class Conflict(GanttError):
    """Other schedulers or reports were faster until the budget was used up."""

    code = 'gantt.conflict'
    http_status = 409
    template = 'request {request_id}: gave up after {attempts} attempts, each lost to a conflict'


class Unavailable(GanttError):
    """A dependency is away, or too little is known to answer."""

    code = 'gantt.unavailable'
    http_status = 503
    template = 'The service cannot answer now.'


class Busy(Unavailable):
    """The queue is full, or somebody else works on this very request."""

    code = 'gantt.busy'
    template = 'busy: {reason}; retry after {retry_after_ms} ms'


class Expired(Unavailable):
    """The caller's budget was spent before the work began; nothing was done."""

    code = 'gantt.expired'
    http_status = 504
    template = 'the budget of {budget_ms} ms was spent before the request could be placed'


class DatabaseUnavailable(Unavailable):
    """The database does not answer."""

    code = 'gantt.database_unavailable'
    template = 'the database does not answer: {problem}'


class DatabaseFull(DatabaseUnavailable):
    """The database has no room to write; the changes of this transaction are undone."""

    code = 'gantt.database_full'
    template = (
        'the disk of the database is full, nothing can be written: {problem}; nothing that was '
        'acknowledged is lost. Make room where the database keeps its files, and '
        'ask again: nothing has to be restarted'
    )


class DatabaseContended(DatabaseUnavailable):
    """Error for a write whose rows were changed by others at each try."""

    code = 'gantt.database_contended'
    template = 'nothing was written, as the database has other rows at each try: {problem}'


class BrokerUnavailable(Unavailable):
    """The message broker does not answer."""

    code = 'gantt.broker_unavailable'
    template = 'the message broker at {url} does not answer: {problem}'


class HostsUnknown(Unavailable):
    """ "Do not know" as opposed to "no room"."""

    code = 'gantt.hosts_unknown'
    template = 'host state is unavailable: {problem}'


class PlanUnreadable(Unavailable):
    """A stored plan that a later release has written, or that was damaged."""

    code = 'gantt.plan_unreadable'
    template = (
        'the plan of group {group} cannot be read by this release: {problem}; release it, or ask '
        'a process of the release that has written it'
    )


class ClaimUnreadable(Unavailable):
    """A stored claim that a later release has written, or that was damaged."""

    code = 'gantt.claim_unreadable'
    template = (
        'claim {claim} cannot be read by this release: {problem}; an operator can release it, or '
        'ask a process of the release that has written it'
    )


class RuleUnreadable(Unavailable):
    """The stored rule of a server group that a later release has written, or that was damaged."""

    code = 'gantt.rule_unreadable'
    template = (
        'the rule of a server group cannot be read by this release: {problem}; ask a process of '
        'the release that has written it, or remove the group'
    )


class SearchOutOfBudget(Unavailable):
    """A search for candidates was ended before it could say whether there is any, or any more."""

    code = 'gantt.search_out_of_budget'
    template = (
        'the search for candidates was ended after {steps} steps: whether there are more is not '
        'known; request fewer with "limit", or fewer groups'
    )


class Misconfigured(GanttError):
    """Names the option or file that is wrong, and the fix."""

    code = 'gantt.misconfigured'
    template = '{option}: {problem}. {fix}'


class PluginError(Misconfigured):
    """A plugin that is unknown, does not load or breaks its contract."""

    code = 'gantt.plugin'
    template = 'plugin {plugin!r}: {problem}'


class DatabaseNotSynced(Misconfigured):
    """The schema is older or newer than the code."""

    code = 'gantt.database_not_synced'
    template = (
        'the database schema is at {current}, this version of Gantt needs {expected}; '
        'run "gantt-manage db sync"'
    )


class Bug(GanttError):
    """An invariant does not hold; loud on purpose."""

    code = 'gantt.bug'
    template = 'invariant broken: {invariant}'
