# SPDX-License-Identifier: Apache-2.0
"""The caller of a request, as far as the authentication strategy identifies it."""

from typing import Any

import msgspec


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and scope of the sender of a request.

    :ivar user: id of the user; ``user_name`` is for people
    :ivar project: id of the project that the caller acts for
    :ivar domain: id of the domain that the caller acts for: then it acts for no project
    :ivar system: whether the caller acts for the whole system
    :ivar service_roles: roles of the service that passes the request on, where there is one
    :ivar remote: network address of a caller that is trusted without a token; else ''
    :ivar certificate: SHA-256 of the certificate that it has presented to this server, as
        hexadecimal digits; '': none
    :ivar base: the address of ``/`` as requested, see ``links.base``
    :ivar trace: trace id of the header ``traceparent``; '': there is no valid one
    :ivar everywhere: whether the route's rule admits the caller to objects of all projects, or of
        its own only
    :ivar is_parent: it is a parent zone, which acts for its project; one of the same owner is
        admitted to objects of all projects
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
    is_parent: bool = False

    @property
    def project_filter(self) -> str | None:
        """The only project whose objects the caller may list; None: all projects."""
        return None if self.everywhere else self.project or ''

    def may_see(self, project: str | None) -> bool:
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

    def roles_and_scope(self) -> str:
        """Return roles and scope, for a refusal."""
        roles = ', '.join(self.roles) or 'none'
        if self.system:
            return f'the roles {roles} on the system'
        if self.domain:
            return f'the roles {roles} on domain {self.domain}'
        return f'the roles {roles} on ' + (f'project {self.project}' if self.project else 'nothing')


#: A caller that is not identified.
ANONYMOUS_CALLER = Caller()
