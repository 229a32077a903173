# SPDX-License-Identifier: Apache-2.0
"""Quotas: how much one project may have, and the rule that refuses what is more.

A limit has a name: ``claims_in_flight`` (reserved, to be confirmed yet), ``live_claims``
(consumers with a live claim), ``server_groups``, ``planned_places`` (of plans of groups, until
their guests run), ``requests_per_minute``, or ``class:VCPU`` and so on for the amount of a resource
class.  A limit of -1 is none.

A consumer counts once, however many claims it has: one that is resized or migrated has two for
a while, and of each class the larger amount counts.  So a move needs room in the quota only for
what the consumer will have more than it has.  Claims that writers of allocations made are no moves:
there is one for each host tree, and what all of them take is added up.  What was handed over to
another consumer, as Nova does with the source of a move, stays its guest's: of both the larger
amount counts.

The usage is read before a batch is committed and the rule is asked for every request of it.
Nobody else is kept from committing meanwhile: the usage may pass a limit by what others had in
flight, which is one batch of every other scheduler.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import NOT_IN_FLIGHT, Claim, State, guest_of
from gantt.core.messages import resource_classes
from gantt.core.messages.base import NAME_MAX
from gantt.core.messages.request import Lifecycle

CLAIMS_IN_FLIGHT = 'claims_in_flight'
LIVE_CLAIMS = 'live_claims'
SERVER_GROUPS = 'server_groups'
PLANNED_PLACES = 'planned_places'
REQUESTS_PER_MINUTE = 'requests_per_minute'
#: In front of the name of a resource class.
CLASS = 'class:'
COUNTS = (CLAIMS_IN_FLIGHT, LIVE_CLAIMS, SERVER_GROUPS, PLANNED_PLACES, REQUESTS_PER_MINUTE)

#: How every reason of a refusal by a quota begins.
WORD = 'quota '

#: No limit; as in Nova and Keystone.
UNLIMITED = -1
LIMIT_MAX = 10**15
#: The limits of every project that has none of its own, in place of a project's id.
DEFAULT = 'default'
#: Of all projects together: every scheduler keeps them in memory.
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
    """What a project has, or asks for.

    :ivar live_claims: consumers with a live claim
    :ivar amounts: resource class -> amount, in the unit of the class
    """

    claims_in_flight: int = 0
    live_claims: int = 0
    amounts: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The part that the limit ``name`` is about."""
        if name.startswith(CLASS):
            return self.amounts.get(name.removeprefix(CLASS), 0)
        return {CLAIMS_IN_FLIGHT: self.claims_in_flight, LIVE_CLAIMS: self.live_claims}.get(name, 0)

    def plus(self, other: 'Usage') -> 'Usage':
        """Both together."""
        names = self.amounts.keys() | other.amounts.keys()
        return Usage(
            claims_in_flight=self.claims_in_flight + other.claims_in_flight,
            live_claims=self.live_claims + other.live_claims,
            amounts={
                name: self.amounts.get(name, 0) + other.amounts.get(name, 0) for name in names
            },
        )

    def minus(self, other: 'Usage') -> 'Usage':
        """What is left where that ends; of the classes that are named here."""
        return Usage(
            claims_in_flight=self.claims_in_flight - other.claims_in_flight,
            live_claims=self.live_claims - other.live_claims,
            amounts={n: amount - other.amounts.get(n, 0) for n, amount in self.amounts.items()},
        )


class ProjectUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the live claims of one project take together.

    A guest that is being moved or resized has two claims meanwhile, and both are counted: that
    much is taken from the hosts.

    :ivar project_id: empty: of consumers whose project nobody has said
    :ivar claims: live ones, reserved or confirmed
    :ivar claims_in_flight: the part of them that is reserved, and that somebody is to confirm yet
    :ivar consumers: that have live claims
    :ivar amounts: resource class -> amount, in the unit of the class; no class of which it is 0
    """

    project_id: str
    claims: int = 0
    claims_in_flight: int = 0
    consumers: int = 0
    amounts: dict[str, int] = {}


class TakenByClaim(NamedTuple):
    """What one claim takes, of all its providers together.

    :ivar guest: whom it was made for
    :ivar is_written: a writer of allocations has made it
    """

    guest: str
    consumer: str
    is_written: bool
    amounts: Mapping[str, int]


class Excess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request is refused: it asks for more than a limit leaves.

    :ivar name: of the limit
    :ivar retry_after_ms: of a rate: when one more is let in
    """

    name: str
    limit: int
    used: int
    asked: int
    retry_after_ms: int | None = None

    @property
    def line(self) -> str:
        """As one sentence: ``quota live_claims: 10 of 10 used, 2 asked``."""
        return f'{WORD}{self.name}: {self.used} of {self.limit} used, {self.asked} asked'

    @property
    def cause(self) -> str:
        """The same of all refusals by this limit."""
        return f'{WORD}{self.name}'

    def error(self) -> exceptions.GanttError:
        """The error that the caller is told."""
        facts = {'name': self.name, 'limit': self.limit, 'used': self.used, 'asked': self.asked}
        if self.retry_after_ms is not None:
            return exceptions.TooManyRequests(
                self.line, retry_after_ms=self.retry_after_ms, **facts
            )
        return exceptions.QuotaExceeded(self.line, **facts)


def check_name(name: str, field: str) -> None:
    """Whether there is a limit by this name.

    :param field: for the refusal
    :raises InvalidMessage:
    """
    found = name.removeprefix(CLASS)
    is_class = found != name and resource_classes.is_class_name(found) and len(name) <= NAME_MAX
    if name not in COUNTS and not is_class:
        raise exceptions.invalid(
            field,
            f'{name[:NAME_MAX]!r} is no limit; expected one of {", ".join(COUNTS)}, or '
            f'{CLASS} and a resource class such as {CLASS}VCPU',
        )


def check(limits: Iterable[Limit]) -> None:
    """Whether limits may be stored.

    :raises InvalidMessage: names the limit and what was expected
    """
    for one in limits:
        check_name(one.name, 'limits')
        if not UNLIMITED <= one.limit <= LIMIT_MAX:
            raise exceptions.invalid(
                f'limits.{one.name}',
                f'expected a whole number from 0 to {LIMIT_MAX}, or {UNLIMITED} for no '
                f'limit, got {one.limit}',
            )


def too_many() -> str:
    """Why no further limit is stored."""
    return (
        f'{LIMITS_MAX} limits are stored already, which is as many as may be; unset some first, '
        f'or set them for the project {DEFAULT!r}'
    )


class Limits:
    """All limits as they are in force.

    :param stored: those in the database
    :param options: of a cloud that stores no defaults: name -> limit
    """

    def __init__(self, stored: Iterable[Limit] = (), options: Mapping[str, int] | None = None):
        own: dict[str, dict[str, int]] = {}
        for one in stored:
            own.setdefault(one.project_id, {})[one.name] = one.limit
        self._options = dict(options or {})
        self._defaults = own.pop(DEFAULT, {})
        self._own = own
        #: Whether nobody is bound by anything.
        self.is_empty = not (self._options or self._defaults or own)

    def of(self, project: str | None, is_own_caller: bool) -> dict[str, int]:
        """Name -> limit of what binds a request; {}: nothing does.

        :param is_own_caller: the project asks for itself; else a service places for it, which
            only limits of this very project bind
        """
        if project is None:
            return {}
        own = self._own.get(project, {})
        if not (is_own_caller or own):
            return {}
        found = {**self._options, **self._defaults, **own} if is_own_caller else own
        return {name: limit for name, limit in found.items() if limit != UNLIMITED}

    def shown(self, project: str) -> dict[str, tuple[int, str]]:
        """Name -> (limit, where it is from: project, default or options), no limits too."""
        found = {name: (UNLIMITED, 'options') for name in COUNTS}
        for limits, source in (
            (self._options, 'options'),
            (self._defaults, 'default'),
            (self._own.get(project, {}), 'project'),
        ):
            found |= {name: (limit, source) for name, limit in limits.items()}
        return found


def demand(
    resources_of_one: Mapping[str, int], consumers: Iterable[str], held: Iterable[Claim] = ()
) -> Usage:
    """What a request asks for beyond what its consumers have.

    :param resources_of_one: class -> amount of one consumer
    :param consumers: those without a claim of this request yet
    :param held: live claims of these consumers, whoever has them by now
    """
    has = _of_guests(held)
    count = new = 0
    amounts: dict[str, int] = {}
    for consumer in consumers:
        count += 1
        new += consumer not in has
        before = has.get(consumer, Counter())
        for name, amount in resources_of_one.items():
            amounts[name] = amounts.get(name, 0) + max(0, amount - before.get(name, 0))
    return Usage(claims_in_flight=count, live_claims=new, amounts=amounts)


def amounts_of(claim: Claim) -> dict[str, int]:
    """Class -> what a claim takes, of all its providers together."""
    found: Counter[str] = Counter()
    for taken in claim.allocations.values():
        found.update(taken)
    return dict(found)


def usage_of(claims: Iterable[Claim]) -> Usage:
    """What the live claims of one project come to: the rule that every store counts by."""
    live = [claim for claim in claims if claim.is_live]
    of_guests = _of_guests(live)
    total: Counter[str] = Counter()
    for amounts in of_guests.values():
        total.update(amounts)
    in_flight = sum(
        claim.state is State.RESERVED
        and claim.lifecycle not in NOT_IN_FLIGHT
        and not claim.is_free_place
        for claim in live
    )
    return Usage(claims_in_flight=in_flight, live_claims=len(of_guests), amounts=dict(total))


def _of_guests(claims: Iterable[Claim]) -> dict[str, Counter[str]]:
    return counted(
        TakenByClaim(
            guest_of(claim), claim.consumer, claim.lifecycle is Lifecycle.API, amounts_of(claim)
        )
        for claim in claims
    )


def counted(claims: Iterable[TakenByClaim]) -> dict[str, Counter[str]]:
    """Guest -> class -> what counts of it: the most that one of its consumers has.

    :param claims: of one project
    """
    written: dict[tuple[str, str], Counter[str]] = {}
    largest: dict[tuple[str, str], Counter[str]] = {}
    for guest, consumer, is_written, amounts in claims:
        whose = guest, consumer
        if is_written:
            written[whose] = written.get(whose, Counter()) + Counter(amounts)
        else:
            largest[whose] = largest.get(whose, Counter()) | Counter(amounts)
    found: dict[str, Counter[str]] = {}
    for whose in written.keys() | largest.keys():
        has = written.get(whose, Counter()) + largest.get(whose, Counter())
        found[whose[0]] = found.get(whose[0], Counter()) | has
    return found


def excess(limits: Mapping[str, int], used: Usage, requested: Usage) -> Excess | None:
    """The first limit, by name, that what is asked for would pass; None: it may be had.

    Who asks for nothing of a kind is not refused for it, however much is used.
    """
    for name in sorted(limits):
        more, has, limit = requested.of(name), used.of(name), limits[name]
        if more > 0 and limit != UNLIMITED and has + more > limit:
            return Excess(name=name, limit=limit, used=has, asked=more)
    return None


class Bucket:
    """Tokens of one project: as many as its limit of requests per minute, coming back evenly."""

    __slots__ = ('_at', '_left', '_limit')

    def __init__(self, limit: int, now: float) -> None:
        self._limit, self._left, self._at = limit, float(limit), now

    def take(self, limit: int, now: float) -> Excess | None:
        """Take one token, or tell why there is none.

        :param limit: as it is now
        :param now: seconds, never going back
        """
        back = (now - self._at) * limit / 60
        self._left = min(float(limit), self._left + max(0, limit - self._limit) + back)
        self._limit, self._at = limit, now
        if self._left >= 1:
            self._left -= 1
            return None
        wait = 60.0 if limit <= 0 else (1 - self._left) * 60 / limit
        return Excess(
            name=REQUESTS_PER_MINUTE,
            limit=limit,
            used=limit,
            asked=1,
            retry_after_ms=max(1, round(min(wait, 60.0) * 1000)),
        )
