# SPDX-License-Identifier: Apache-2.0
"""Handler of version discovery, which is public."""

from gantt.placement_api.http import versions
from gantt.placement_api.http.call import Call, PlacementAnswer


def show_versions(call: Call) -> PlacementAnswer:
    """Show the versions of the interface, in the form of version discovery."""
    lowest, highest = versions.shown(versions.LOWEST), versions.shown(versions.HIGHEST)
    version = {
        'id': f'v{lowest}',
        'max_version': highest,
        'min_version': lowest,
        'status': 'CURRENT',
        # Relative, so that no proxy in between has to be known.
        'links': [{'rel': 'self', 'href': ''}],
    }
    return PlacementAnswer(body={'versions': [version]})
