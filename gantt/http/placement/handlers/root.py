# SPDX-License-Identifier: Apache-2.0
"""Handler of version discovery, which is public."""

from gantt.http.placement import versions
from gantt.http.placement.call import Answer, Call


def show_versions(call: Call) -> Answer:
    """The one entry point, in the form of version discovery."""
    lowest, highest = versions.shown(versions.LOWEST), versions.shown(versions.HIGHEST)
    version = {
        'id': f'v{lowest}',
        'max_version': highest,
        'min_version': lowest,
        'status': 'CURRENT',
        # Relative, so that no proxy in between has to be known.
        'links': [{'rel': 'self', 'href': ''}],
    }
    return Answer(body={'versions': [version]})
