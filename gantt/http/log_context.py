# SPDX-License-Identifier: Apache-2.0
"""Context of log lines: the ids and the caller of a request, while a thread serves it."""

from typing import Any

import falcon
from oslo_context import context

from gantt.core.messages.request import SelectDestinations
from gantt.core.trace import trace_in
from gantt.http import errors, fair_tasks
from gantt.http.caller import Caller


class LogContext:
    """Falcon middleware: the context of the request, for as long as this thread serves it."""

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Set the request id, which is known before the caller is."""
        req.context.outer = context.get_current()
        context.RequestContext(
            request_id=errors.request_id_of(req.env) or None,
            global_request_id=trace_of_headers(req) or None,
            overwrite=True,
        )

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, succeeded: bool
    ) -> None:
        """Restore the context: what the thread logs next is not of this request."""
        if req.context.outer is not None:
            req.context.outer.update_store()
        else:
            vars(context._request_store).pop('context', None)


def identify(req: falcon.Request, caller: Caller) -> None:
    """Set the caller, for the log and for the server's turns by project."""
    if caller.project is not None:
        req.env[fair_tasks.PROJECT_KEY] = caller.project
    context.RequestContext(
        request_id=errors.request_id_of(req.env) or None,
        global_request_id=trace_of_headers(req) or None,
        user_id=caller.user or None,
        project_id=caller.project,
        domain_id=caller.domain,
        system_scope='all' if caller.system else None,
        roles=list(caller.roles),
        service_roles=list(caller.service_roles),
        overwrite=True,
    )


def trace_of_headers(req: falcon.Request) -> str:
    """Return the trace id that the caller has sent; '': none is valid, and one is generated."""
    return trace_in(req.get_header('traceparent'))


def with_trace(caller: Caller, request: SelectDestinations) -> SelectDestinations:
    """Return a request with the trace id of its caller, or a new one, which log lines carry too."""
    traced_request = request.traced(caller.trace)
    current = context.get_current()
    if current is not None:
        current.global_request_id = traced_request.trace
    return traced_request
