# SPDX-License-Identifier: Apache-2.0
"""Quotas: the limits of one project, and the rule that refuses what exceeds them.

A limit has a name: ``claims_in_flight`` (reserved, to be confirmed yet), ``live_claims``
(consumers with a live claim), ``server_groups``, ``reservations`` (of plans of groups, until
their guests run), ``requests_per_minute``, or ``class:VCPU`` and so on for the amount of a resource
class.  A limit of -1 is none.

A consumer counts once, however many claims it has: one that is resized or migrated has two for
a while, and of each class the larger amount counts.  So a move needs room in the quota only for
the increase of the consumer's use.  Claims that writers of allocations created are no moves:
there is one for each host tree, and the amounts of all of them are added up.  A claim handed over
to another consumer, as Nova does with the source of a move, stays its guest's: of both the larger
amount counts.

The usage is read before a batch is committed and the rule is evaluated for every request of it.
Other schedulers may commit meanwhile: the usage may pass a limit by what they had in
flight, which is one batch of every other scheduler.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import LIFECYCLES_WITHOUT_CONFIRMATION, Claim, State, guest_of
from gantt.core.messages import resource_classes
from gantt.core.messages.base import NAME_MAX
from gantt.core.messages.request import Lifecycle

CLAIMS_IN_FLIGHT = 'claims_in_flight'
LIVE_CLAIMS = 'live_claims'
SERVER_GROUPS = 'server_groups'
RESERVATIONS = 'reservations'
REQUESTS_PER_MINUTE = 'requests_per_minute'
#: Prefix of limits of resource classes.
CLASS_LIMIT_PREFIX = 'class:'
COUNT_LIMITS = (CLAIMS_IN_FLIGHT, LIVE_CLAIMS, SERVER_GROUPS, RESERVATIONS, REQUESTS_PER_MINUTE)

#: Prefix of every reason of a refusal by a quota.
QUOTA_REASON_PREFIX = 'quota '

#: No limit; as in Nova and Keystone.
UNLIMITED = -1
LIMIT_MAX = 10**15
#: Project id of the limits of every project that has none of its own.
DEFAULT_PROJECT = 'default'
#: Largest number of limits of all projects: every scheduler keeps them in memory.
LIMITS_MAX = 50_000


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit as it is stored.

    :ivar project_id: ``default``: of every project that has none of its own by that name
    :ivar limit: -1: none
    """

    project_id: str
    name: str
    limit: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a project, or demand of a request.

    :ivar live_claims: consumers with a live claim
    :ivar amounts: resource class -> amount, in the unit of the class
    """

    claims_in_flight: int = 0
    live_claims: int = 0
    amounts: dict[str, int] = {}

    def of(self, name: str) -> int:
        """Return the part that the limit ``name`` concerns."""
        if name.startswith(CLASS_LIMIT_PREFIX):
            return self.amounts.get(name.removeprefix(CLASS_LIMIT_PREFIX), 0)
        return {CLAIMS_IN_FLIGHT: self.claims_in_flight, LIVE_CLAIMS: self.live_claims}.get(name, 0)

    def plus(self, other: 'Usage') -> 'Usage':
        """Return the sum of this usage and another."""
        names = self.amounts.keys() | other.amounts.keys()
        return Usage(
            claims_in_flight=self.claims_in_flight + other.claims_in_flight,
            live_claims=self.live_claims + other.live_claims,
            amounts={
                name: self.amounts.get(name, 0) + other.amounts.get(name, 0) for name in names
            },
        )

    def minus(self, other: 'Usage') -> 'Usage':
        """Return this usage minus another, for the classes of this usage."""
        return Usage(
            claims_in_flight=self.claims_in_flight - other.claims_in_flight,
            live_claims=self.live_claims - other.live_claims,
            amounts={
                name: amount - other.amounts.get(name, 0) for name, amount in self.amounts.items()
            },
        )


class ProjectUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of the amounts of the live claims of one project.

    A guest that is being moved or resized has two claims meanwhile, and both are counted: that
    much is taken from the hosts.

    :ivar project_id: empty: of consumers whose project is not known
    :ivar claims: number of live claims, reserved or confirmed
    :ivar claims_in_flight: number of reserved claims that somebody has to confirm yet
    :ivar consumers: number of consumers with live claims
    :ivar amounts: resource class -> amount, in the unit of the class; no class of which it is 0
    """

    project_id: str
    claims: int = 0
    claims_in_flight: int = 0
    consumers: int = 0
    amounts: dict[str, int] = {}


class TakenByClaim(NamedTuple):
    """Amounts of one claim, on all its providers together.

    :ivar guest: guest that it was created for
    :ivar is_written: True where a writer of allocations has created it
    """

    guest: str
    consumer: str
    is_written: bool
    amounts: Mapping[str, int]


class Excess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Refusal of a request that exceeds a limit.

    :ivar name: name of the limit
    :ivar retry_after_ms: of a rate: time until another request is admitted
    """

    name: str
    limit: int
    used: int
    requested: int
    retry_after_ms: int | None = None

    @property
    def line(self) -> str:
        """Message of one sentence: ``quota live_claims: 10 of 10 used, 2 requested``."""
        counts = f'{self.used} of {self.limit} used, {self.requested} requested'
        return f'{QUOTA_REASON_PREFIX}{self.name}: {counts}'

    @property
    def cause(self) -> str:
        """Cause that all refusals by this limit share."""
        return f'{QUOTA_REASON_PREFIX}{self.name}'

    def error(self) -> exceptions.GanttError:
        """Return the error for the caller."""
        facts = {
            'name': self.name,
            'limit': self.limit,
            'used': self.used,
            'requested': self.requested,
        }
        if self.retry_after_ms is not None:
            return exceptions.TooManyRequests(
                self.line, retry_after_ms=self.retry_after_ms, **facts
            )
        return exceptions.QuotaExceeded(self.line, **facts)


def check_name(name: str, field: str) -> None:
    """Check that there is a limit by this name.

    :param field: field of the name, for the refusal
    :raises InvalidMessage:
    """
    class_name = name.removeprefix(CLASS_LIMIT_PREFIX)
    is_class = (
        class_name != name and resource_classes.is_class_name(class_name) and len(name) <= NAME_MAX
    )
    if name not in COUNT_LIMITS and not is_class:
        raise exceptions.invalid(
            field,
            f'{name[:NAME_MAX]!r} is no limit; expected one of {", ".join(COUNT_LIMITS)}, or '
            f'{CLASS_LIMIT_PREFIX} and a resource class such as {CLASS_LIMIT_PREFIX}VCPU',
        )


def check(limits: Iterable[Limit]) -> None:
    """Check that limits may be stored.

    :raises InvalidMessage: names the limit and what was expected
    """
    for limit in limits:
        check_name(limit.name, 'limits')
        if not UNLIMITED <= limit.limit <= LIMIT_MAX:
            raise exceptions.invalid(
                f'limits.{limit.name}',
                f'expected a whole number from 0 to {LIMIT_MAX}, or {UNLIMITED} for no '
                f'limit, got {limit.limit}',
            )


def too_many_limits_text() -> str:
    """Return why no further limit is stored."""
    return (
        f'{LIMITS_MAX} limits are stored already, which is as many as may be; unset some first, '
        f'or set them for the project {DEFAULT_PROJECT!r}'
    )


class Limits:
    """Set of all limits in force.

    :param stored: limits in the database
    :param options: limits by name, for a cloud that stores no defaults
    """

    def __init__(self, stored: Iterable[Limit] = (), options: Mapping[str, int] | None = None):
        by_project: dict[str, dict[str, int]] = {}
        for limit in stored:
            by_project.setdefault(limit.project_id, {})[limit.name] = limit.limit
        self._options = dict(options or {})
        self._defaults = by_project.pop(DEFAULT_PROJECT, {})
        self._limits_by_project = by_project
        #: True where no project is limited.
        self.is_empty = not (self._options or self._defaults or by_project)

    def of(self, project: str | None, is_own_caller: bool) -> dict[str, int]:
        """Return name -> limit of what binds a request; {}: nothing does.

        :param is_own_caller: the project is the caller; else a service places for it, which
            only limits of this very project bind
        """
        if project is None:
            return {}
        own_limits = self._limits_by_project.get(project, {})
        if not (is_own_caller or own_limits):
            return {}
        limits = {**self._options, **self._defaults, **own_limits} if is_own_caller else own_limits
        return {name: limit for name, limit in limits.items() if limit != UNLIMITED}

    def shown(self, project: str) -> dict[str, tuple[int, str]]:
        """Return name -> (limit, its source: project, default or options), unlimited ones too."""
        shown = {name: (UNLIMITED, 'options') for name in COUNT_LIMITS}
        for limits, source in (
            (self._options, 'options'),
            (self._defaults, 'default'),
            (self._limits_by_project.get(project, {}), 'project'),
        ):
            shown |= {name: (limit, source) for name, limit in limits.items()}
        return shown


def requested_usage(
    resources_of_one: Mapping[str, int], consumers: Iterable[str], held: Iterable[Claim] = ()
) -> Usage:
    """Return what a request needs beyond what its consumers have.

    :param resources_of_one: class -> amount of one consumer
    :param consumers: consumers without a claim of this request yet
    :param held: live claims of these consumers, of any project by now
    """
    held_by_guest = _usage_of_guests(held)
    count = new = 0
    amounts: dict[str, int] = {}
    for consumer in consumers:
        count += 1
        new += consumer not in held_by_guest
        before = held_by_guest.get(consumer, Counter())
        for name, amount in resources_of_one.items():
            amounts[name] = amounts.get(name, 0) + max(0, amount - before.get(name, 0))
    return Usage(claims_in_flight=count, live_claims=new, amounts=amounts)


def amounts_of(claim: Claim) -> dict[str, int]:
    """Return class -> amount of a claim, on all its providers together."""
    amounts: Counter[str] = Counter()
    for taken in claim.allocations.values():
        amounts.update(taken)
    return dict(amounts)


def usage_of(claims: Iterable[Claim]) -> Usage:
    """Return the usage of the live claims of one project: the rule that every store counts by."""
    live = [claim for claim in claims if claim.is_live]
    of_guests = _usage_of_guests(live)
    total: Counter[str] = Counter()
    for amounts in of_guests.values():
        total.update(amounts)
    in_flight = sum(
        claim.state is State.RESERVED
        and claim.lifecycle not in LIFECYCLES_WITHOUT_CONFIRMATION
        and not claim.is_free_reservation
        for claim in live
    )
    return Usage(claims_in_flight=in_flight, live_claims=len(of_guests), amounts=dict(total))


def _usage_of_guests(claims: Iterable[Claim]) -> dict[str, Counter[str]]:
    return counted_amounts(
        TakenByClaim(
            guest_of(claim), claim.consumer, claim.lifecycle is Lifecycle.API, amounts_of(claim)
        )
        for claim in claims
    )


def counted_amounts(claims: Iterable[TakenByClaim]) -> dict[str, Counter[str]]:
    """Return guest -> class -> amount that counts: the most that one of its consumers has.

    :param claims: of one project
    """
    written: dict[tuple[str, str], Counter[str]] = {}
    largest: dict[tuple[str, str], Counter[str]] = {}
    for guest, consumer, is_written, amounts in claims:
        key = guest, consumer
        if is_written:
            written[key] = written.get(key, Counter()) + Counter(amounts)
        else:
            largest[key] = largest.get(key, Counter()) | Counter(amounts)
    by_guest: dict[str, Counter[str]] = {}
    for key in written.keys() | largest.keys():
        total = written.get(key, Counter()) + largest.get(key, Counter())
        by_guest[key[0]] = by_guest.get(key[0], Counter()) | total
    return by_guest


def first_excess(limits: Mapping[str, int], used: Usage, requested: Usage) -> Excess | None:
    """Return the first limit, by name, that a request would pass; None: it may be had.

    A request for nothing of a kind is not refused for it, however much is used.
    """
    for name in sorted(limits):
        increase, in_use, limit = requested.of(name), used.of(name), limits[name]
        if increase > 0 and limit != UNLIMITED and in_use + increase > limit:
            return Excess(name=name, limit=limit, used=in_use, requested=increase)
    return None


class TokenBucket:
    """Tokens of one project: as many as its limit of requests per minute, coming back evenly."""

    __slots__ = ('_limit', '_refilled_at', '_tokens')

    def __init__(self, limit: int, now: float) -> None:
        self._limit = limit
        self._tokens = float(limit)
        self._refilled_at = now

    def take(self, limit: int, now: float) -> Excess | None:
        """Take one token, or return why there is none.

        :param limit: the present limit, in requests per minute
        :param now: seconds, never going back
        """
        back = (now - self._refilled_at) * limit / 60
        self._tokens = min(float(limit), self._tokens + max(0, limit - self._limit) + back)
        self._limit = limit
        self._refilled_at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return None
        wait = 60.0 if limit <= 0 else (1 - self._tokens) * 60 / limit
        return Excess(
            name=REQUESTS_PER_MINUTE,
            limit=limit,
            used=limit,
            requested=1,
            retry_after_ms=max(1, round(min(wait, 60.0) * 1000)),
        )
