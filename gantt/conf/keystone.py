# SPDX-License-Identifier: Apache-2.0
"""[nova] and [placement]: how their APIs are reached, with the options of keystoneauth.

Not among the modules that every process registers: the library is large, and one
process needs it.
"""

from typing import Any

#: Group -> the service's type in keystone's catalog.
SERVICES = {'nova': 'compute', 'placement': 'placement'}


def register_opts(conf: Any) -> None:
    """Register the options of both groups; those of an ``auth_type`` come with it."""
    from keystoneauth1 import loading

    for group, kind in SERVICES.items():
        loading.register_session_conf_options(conf, group)
        loading.register_auth_conf_options(conf, group)
        loading.register_adapter_conf_options(conf, group, include_deprecated=False)
        conf.set_default('service_type', kind, group)
        conf.set_default('valid_interfaces', ['internal', 'public'], group)


def section(conf: Any, group: str) -> str:
    """Return the group with the credentials for ``group``: its ``auth_section``, or itself."""
    return conf[group].auth_section or group


def has_credentials(conf: Any, group: str) -> bool:
    """Return whether a group, or the section that it names, has credentials (``auth_type``)."""
    return bool(conf[group].auth_section or conf[group].auth_type)


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return for oslo.config's generator the options, with those of the commonest ``auth_type``."""
    from keystoneauth1 import loading

    return [
        (
            group,
            [
                *loading.get_auth_common_conf_options(),
                *loading.get_auth_plugin_conf_options('password'),
                *loading.get_session_conf_options(),
                *loading.get_adapter_conf_options(include_deprecated=False),
            ],
        )
        for group in SERVICES
    ]
