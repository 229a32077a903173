# SPDX-License-Identifier: Apache-2.0
"""Sessions of keystoneauth from options: [nova] for both services, or [placement] as well."""

import threading
from typing import Any

import keystoneauth1.exceptions as ks
from keystoneauth1 import loading
from keystoneauth1.session import Session

from gantt import exceptions
from gantt.conf import keystone
from gantt.nova_source.api import Api
from gantt.nova_source.nova_api_types import NOVA_VERSION, PLACEMENT_VERSION


def apis(conf: Any, seconds: float, stopping: threading.Event | None = None) -> tuple[Api, Api]:
    """Return Nova and Placement, as they are configured; nothing is requested yet.

    :param seconds: how long one request may take, where ``timeout`` is not set
    :param stopping: ends tries and pauses
    :raises Misconfigured: names option and group
    """
    keystone.register_opts(conf)
    nova = _session(conf, 'nova', seconds)
    is_separate = keystone.is_given(conf, 'placement')
    placement = _session(conf, 'placement', seconds) if is_separate else nova
    return (
        Api(_adapter(conf, 'nova', nova), 'Nova', 'nova', NOVA_VERSION, stopping=stopping),
        Api(
            _adapter(conf, 'placement', placement),
            'Placement',
            'placement',
            PLACEMENT_VERSION,
            stopping=stopping,
        ),
    )


def _session(conf: Any, group: str, seconds: float) -> Session:
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
    except ks.ClientException as e:
        raise _wrong(keystone.section(conf, group), str(e)) from None
    if auth is None:
        raise _wrong(keystone.section(conf, group), 'auth_type is not set')
    session = loading.load_session_from_conf_options(conf, group, auth=auth)
    if session.timeout is None:
        session.timeout = float(seconds)
    return session


def _adapter(conf: Any, group: str, session: Session) -> Any:
    # Retries are ours, so that they are bounded in one place.
    return loading.load_adapter_from_conf_options(conf, group, session=session)


def _wrong(group: str, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option=f'[{group}] auth_type',
        problem=problem,
        fix='e.g. auth_type = password, with auth_url, username, password, project_name, '
        'user_domain_name and project_domain_name',
    )
