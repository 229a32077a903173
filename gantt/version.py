# SPDX-License-Identifier: Apache-2.0
"""The version of the installed package."""

import functools
from importlib import metadata


@functools.cache
def version_string() -> str:
    """Return the version of pbr at build time; ``unknown`` where Gantt runs uninstalled."""
    try:
        return metadata.version('gantt')
    except metadata.PackageNotFoundError:
        return 'unknown'
