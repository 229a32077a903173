# SPDX-License-Identifier: Apache-2.0
"""Who asks, as far as the authentication strategy can say."""

from typing import Any

import msgspec

from gantt.core.zones.messages import ParentRecord


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a request comes from, and what it acts for.

    :ivar user: its id; ``user_name`` is for people
    :ivar project: that it acts for, by id
    :ivar domain: that it acts for, by id: then it acts for no project
    :ivar system: it acts for the whole system
    :ivar service_roles: of the service that passes the request on, where one says so
    :ivar remote: the address that it calls from, where it is believed without a token; else ''
    :ivar certificate: SHA-256 of what it has shown to this server when the connection was made, as
        hexadecimal digits; '': nothing
    :ivar base: the address of ``/`` as it was asked for, see ``links.base``
    :ivar trace: of the header ``traceparent``; '': it has none that is valid
    :ivar everywhere: the rule of the route lets it at things of all projects,
        else at those of its own only
    :ivar above: the zone above that it is, as that is registered; None: it is none
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
        """The one project of whose things lists are; None: of all."""
        return None if self.everywhere else self.project or ''

    def sees(self, project: str | None) -> bool:
        """Whether a thing of that project is there for the caller."""
        return self.everywhere or (project is not None and project == self.project)

    def credentials(self) -> dict[str, Any]:
        """As oslo.policy reads them; what is not known is not in it."""
        known = {
            'user_id': self.user,
            'project_id': self.project,
            'domain_id': self.domain,
            'system_scope': 'all' if self.system else None,
        }
        return {
            **{key: value for key, value in known.items() if value},
            'roles': list(self.roles),
            'service_roles': list(self.service_roles),
        }

    def words(self) -> str:
        """Roles and scope, for a refusal."""
        roles = ', '.join(self.roles) or 'none'
        if self.system:
            return f'the roles {roles} on the system'
        if self.domain:
            return f'the roles {roles} on domain {self.domain}'
        return f'the roles {roles} on ' + (f'project {self.project}' if self.project else 'nothing')


#: Who has said nothing of itself.
NOBODY = Caller()
