# SPDX-License-Identifier: Apache-2.0
"""The audit trail of every change requested over HTTP, refused ones too.

It leaves out callers without a good token, which cannot be named, dry runs, and placements, whose
decisions are stored.
"""

import datetime
from collections.abc import Callable

import falcon

from gantt.core.messages import base, quoting
from gantt.core.records.audit_trail import FAILURE, SUCCESS, AuditEntry, Initiator
from gantt.http import errors
from gantt.http.caller import Caller

StoreEntry = Callable[[AuditEntry], None]


class AuditMiddleware:
    """Falcon middleware that records changes.

    :param store_entry: stores each entry
    """

    def __init__(self, store_entry: StoreEntry) -> None:
        self._store_entry = store_entry

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: object, succeeded: bool
    ) -> None:
        """Record the outcome of a change."""
        change_requested = req.context.get('change')
        if change_requested is None or req.context.get('is_dry_run'):
            return
        rule, caller = change_requested
        failed = (resp.status_code or 500) >= 400
        self._store_entry(
            AuditEntry(
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec='milliseconds'),
                action=rule,
                target=f'{req.method} {quoting.plain_text(req.path, base.TEXT_MAX)}',
                outcome=FAILURE if failed else SUCCESS,
                reason=str(req.context.get('code', '')) if failed else '',
                message=str(req.context.get('message', '')),
                request_id=errors.request_id_of(req.env),
                initiator=_initiator(caller, req.remote_addr or ''),
            )
        )


def _initiator(caller: Caller, address: str) -> Initiator:
    return Initiator(
        user_id=caller.user,
        user_name=caller.user_name,
        project_id=caller.project,
        domain_id=caller.domain,
        is_system=caller.system,
        roles=caller.roles,
        service_roles=caller.service_roles,
        address=address,
    )
