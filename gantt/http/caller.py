# SPDX-License-Identifier: Apache-2.0
"""The caller of a request, as far as the authentication strategy identifies it."""

from typing import Any

import msgspec

from gantt.core.zones.messages import ParentRecord


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and scope of the sender of a request.

    :ivar user: its id; ``user_name`` is for people
    :ivar project: that it acts for, by id
    :ivar domain: that it acts for, by id: then it acts for no project
    :ivar system: it acts for the whole system
    :ivar service_roles: of the service that passes the request on, where there is one
    :ivar remote: its address, where it is trusted without a token; else ''
    :ivar certificate: SHA-256 of the certificate that it has presented to this server, as
        hexadecimal digits; '': none
    :ivar base: the address of ``/`` as requested, see ``links.base``
    :ivar trace: of the header ``traceparent``; '': it has none that is valid
    :ivar everywhere: the rule of the route admits it to objects of all projects,
        else to those of its own only
    :ivar above: the parent zone that it is, as that is registered; None: it is none
    """

    user: str = ''
    user_name: str = ''
    project: str | None = None
    domain: str | None = None
    system: bool = False
    roles: tuple[str, ...] = ()
    service_roles: tuple[str, ...] = ()
    everywhere: bool = False
    base: str = ''
    trace: str = ''
    remote: str = ''
    certificate: str = ''
    above: ParentRecord | None = None

    @property
    def only(self) -> str | None:
        """The one project that lists are limited to; None: all projects."""
        return None if self.everywhere else self.project or ''

    def sees(self, project: str | None) -> bool:
        """Return whether an object of that project exists for the caller."""
        return self.everywhere or (project is not None and project == self.project)

    def credentials(self) -> dict[str, Any]:
        """Return the credentials for oslo.policy, without unknown values."""
        scope = {
            'user_id': self.user,
            'project_id': self.project,
            'domain_id': self.domain,
            'system_scope': 'all' if self.system else None,
        }
        return {
            **{key: value for key, value in scope.items() if value},
            'roles': list(self.roles),
            'service_roles': list(self.service_roles),
        }

    def words(self) -> str:
        """Return roles and scope, for a refusal."""
        roles = ', '.join(self.roles) or 'none'
        if self.system:
            return f'the roles {roles} on the system'
        if self.domain:
            return f'the roles {roles} on domain {self.domain}'
        return f'the roles {roles} on ' + (f'project {self.project}' if self.project else 'nothing')


#: A caller that is not identified.
NOBODY = Caller()
