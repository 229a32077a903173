# SPDX-License-Identifier: Apache-2.0
"""``openstack scheduler …``: the commands of ``gantt`` as a plugin of OpenStackClient.

The client imports this module whenever it runs, and finds the commands by the
entry points of ``openstack.scheduler.v1``.
"""

import argparse
from typing import Any

from gantt.cli.endpoint import Endpoint, Failure

API_NAME = 'scheduler'
API_VERSION_OPTION = 'os_scheduler_api_version'
DEFAULT_API_VERSION = '1'
API_VERSIONS = ('1',)


def make_client(instance: Any) -> Endpoint:
    """Return the endpoint in the catalog, with the token of the client.

    :param instance: OpenStackClient's ``ClientManager``
    """
    url = instance.get_endpoint_for_service_type(
        API_NAME, region_name=instance.region_name, interface=instance.interface
    )
    if not url:
        raise Failure(f'the catalog has no service of the type {API_NAME}')

    def token() -> str:
        return instance.session.get_token() or ''

    return Endpoint(url, login=token, verify=instance.verify)


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the global options, as a hook."""
    parser.add_argument(
        '--os-scheduler-api-version',
        metavar='<scheduler-api-version>',
        default=DEFAULT_API_VERSION,
        choices=API_VERSIONS,
        help=f'Scheduler API version, default={DEFAULT_API_VERSION}',
    )
    return parser
