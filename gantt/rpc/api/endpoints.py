# SPDX-License-Identifier: Apache-2.0
"""RPC methods of our own topics: decode, call the scheduler, encode.  A few lines each."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost, classes_of
from gantt.core.messages.request import (
    CancelClaims,
    ConfirmRequest,
    ExtendClaims,
    GetRequest,
    ReleaseRequest,
    SelectDestinations,
)
from gantt.core.records.decision import Answer
from gantt.rpc import wire
from gantt.rpc.amqp.replies import PendingReply, ReplyWriter
from gantt.rpc.api import stats, stats_foreign
from gantt.rpc.call import RpcCall
from gantt.rpc.server import DEFERRED_REPLY, Interface, Method, Pending

#: Seconds that a report that is called (not cast) waits for its outcome.
REPORT_WAIT_SECONDS = 10.0
NO_METHODS: Mapping[str, Method] = {}


class OwnHandle:
    """Handle that the scheduler carries for a request of our own topic."""

    __slots__ = ('call',)

    def __init__(self, call: RpcCall) -> None:
        self.call = call

    def respond(self, answer: Answer) -> PendingReply:
        result, error = wire.answer(answer)
        return PendingReply(self.call, result, error)


def within(request: SelectDestinations, call: RpcCall) -> SelectDestinations:
    """Return the request with a budget that ends before its caller gives up.

    A monitored caller waits only so long without a sign of life, and we send
    none: the answer itself must be there in time.
    """
    if call.monitor_seconds is None:
        return request
    budget_max = max(1, int(call.monitor_seconds * 750))
    if request.budget_ms <= budget_max:
        return request
    return msgspec.structs.replace(request, budget_ms=budget_max)


class SchedulerMethods:
    """Methods of the topic ``gantt-scheduler``, for conductors.

    :param scheduler: the facade, ``gantt.scheduler.service.Scheduler``
    """

    def __init__(self, scheduler: Any, replies: ReplyWriter) -> None:
        self._scheduler = scheduler
        self._replies = replies
        self.interface = Interface(
            {
                'select_destinations': Method(
                    self.select_destinations,
                    inline=True,
                    parameters={'request': SelectDestinations},
                ),
                'get_request': Method(self.get_request, parameters={'request': GetRequest}),
                'cancel_claims': Method(self.cancel_claims, parameters={'request': CancelClaims}),
                'confirm_request': Method(
                    self.confirm_request, parameters={'request': ConfirmRequest}
                ),
                'release_request': Method(
                    self.release_request, parameters={'request': ReleaseRequest}
                ),
            },
            repeatable=frozenset({'select_destinations'}),
            is_placing=True,
        )

    def select_destinations(self, call: RpcCall) -> object:
        request: SelectDestinations = wire.argument(call)
        if self._scheduler.has_classes(request.spec.classes):
            return self._submit(request, call)
        return Pending(functools.partial(self._submit, request))

    def _submit(self, request: SelectDestinations, call: RpcCall) -> object:
        self._replies.expect()
        try:
            self._scheduler.submit(
                within(request, call), OwnHandle(call), self._replies, spent_ms=call.age_ms
            )
        except BaseException:
            self._replies.finish()
            raise
        return DEFERRED_REPLY

    def get_request(self, call: RpcCall) -> Any:
        answer = self._scheduler.get_request(wire.argument(call))
        result, error = wire.answer(answer)
        if error is not None:
            raise error
        return result

    def cancel_claims(self, call: RpcCall) -> Any:
        return base.to_builtins(self._scheduler.cancel(wire.argument(call)))

    def confirm_request(self, call: RpcCall) -> Any:
        return base.to_builtins(self._scheduler.confirm_request(wire.argument(call)))

    def release_request(self, call: RpcCall) -> Any:
        return base.to_builtins(self._scheduler.release_request(wire.argument(call)))


class ClaimsMethods:
    """Methods of the topic ``gantt-claims``, for compute agents."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.interface = Interface(
            {
                'register_host': Method(
                    self.register_host, inline=True, parameters={'host': RegisterHost}
                ),
                **{
                    f'{verb}_claims': Method(
                        functools.partial(self._update, verb), parameters={'update': ClaimUpdate}
                    )
                    for verb in ('confirm', 'refuse', 'release')
                },
                'extend_claims': Method(self.extend_claims, parameters={'request': ExtendClaims}),
            }
        )

    def register_host(self, call: RpcCall) -> object:
        host: RegisterHost = wire.argument(call)
        host = self._scheduler.signatures.with_verified_registration(host, call.args['host'])
        return Pending(future=self._scheduler.register_soon(host), convert=base.to_builtins)

    def extend_claims(self, call: RpcCall) -> Any:
        return base.to_builtins(self._scheduler.extend(wire.argument(call)))

    def _update(self, verb: str, call: RpcCall) -> Any:
        update: ClaimUpdate = wire.argument(call)
        self._scheduler.signatures.check(call.method, update, call.args['update'])
        return base.to_builtins(getattr(self._scheduler, verb)(update))


class StatsMethods:
    """Methods of the topic ``gantt-stats``, for hosts and report sources.

    A typed report that is cast goes straight to the intake.  What must wait
    (a foreign host for its registration, a class not known here for the database)
    takes a thread.

    :param further: methods that a capability has for report sources
    """

    def __init__(
        self, scheduler: Any, ratios: stats.Ratios, further: Mapping[str, Method] = NO_METHODS
    ) -> None:
        self._scheduler = scheduler
        self._ratios = ratios
        self._foreign = stats.ForeignHosts(scheduler.register_host, scheduler.database_now)
        self.interface = Interface(
            {
                'update_resource_stats': Method(
                    self.update_resource_stats,
                    inline=True,
                    bytes_max=None,
                    parameters={
                        'name': base.TrimmedName,
                        'stats': HostReport | stats.ResourceDictionary,
                    },
                ),
                **further,
            },
            undecoded=self.undecoded,
        )

    def undecoded(self, body: bytes | str) -> Callable[[], object] | None:
        """Return the job for a body that is a report, cast; None for everything else."""
        cast = stats.cast_report(body)
        if cast is None or not self._scheduler.has_classes(classes_of(cast.report)):
            return None
        report = cast.report
        # A report that cannot be attributed to its host here must wait for the database.
        if not self._scheduler.signatures.is_known(stats.STATS_METHOD, report, cast):
            return None
        return functools.partial(self._scheduler.report, report)

    def update_resource_stats(self, call: RpcCall) -> Any:
        wire.check_names(call.args, ('name', 'stats'), newer=call.newer_minor)
        name, body = call.args['name'], call.args['stats']
        report = stats.decode(name, body, newer=call.newer_minor)
        if report is None:
            facts = stats_foreign.reported_facts(name, body, self._ratios)
            self._scheduler.signatures.check_unsigned(stats.STATS_METHOD, facts.host)
            return Pending(lambda call: self._foreign_report(call, facts))
        is_known = self._scheduler.signatures.is_known(stats.STATS_METHOD, report, body)
        if not is_known or not self._scheduler.has_classes(classes_of(report)):
            return Pending(lambda call: self._checked(call, report, body))
        return self._report(call, report)

    def _checked(self, call: RpcCall, report: HostReport, body: dict[str, Any]) -> object:
        self._scheduler.signatures.check(stats.STATS_METHOD, report, body)
        return self._report(call, report)

    def _report(self, call: RpcCall, report: HostReport) -> object:
        if not call.wants_answer:
            return self._scheduler.report(report)
        pending = Pending(
            future=self._scheduler.report_soon(report),
            convert=lambda outcome: base.to_builtins(
                self._scheduler.report_outcome(report, outcome)
            ),
        )
        if call.monitor_seconds is None:
            return pending
        queued = exceptions.Busy(reason='the report is queued', retry_after_ms=1000)
        return pending._replace(seconds=call.left_seconds(REPORT_WAIT_SECONDS), overdue=queued)

    def _foreign_report(self, call: RpcCall, facts: stats.ReportedFacts) -> Any:
        try:
            outcome = self._folded(call, facts)
        except (exceptions.StaleEpoch, exceptions.NotFound):
            # The host was registered anew, or removed: once more, from the start.
            self._foreign.forget(facts.host)
            outcome = self._folded(call, facts)
        if self._foreign.is_behind(outcome):
            # The clock that numbers them was set back: go on from what is stored.
            outcome = self._folded(call, facts)
        return base.to_builtins(outcome)

    def _folded(self, call: RpcCall, facts: stats.ReportedFacts) -> Any:
        """Return the outcome of a report, waited for as long as the caller has a use for it."""
        report = self._foreign.report(facts)
        wait_seconds = call.left_seconds(REPORT_WAIT_SECONDS)
        return self._scheduler.report(report, wait_seconds=wait_seconds)
