# SPDX-License-Identifier: Apache-2.0
"""The two forms of an answer on the wire: in lists, or with hosts that stand once.

See :mod:`gantt.core.records.members`.
"""

from typing import Any

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.records.decision import Answer
from gantt.core.records.members import AnswerByHosts, in_lists

#: The minor version of a caller that understands the form in which hosts stand once.
HOSTS_ONCE = 11


def decoded(body: Any) -> Answer:
    """An answer off the wire, in either form.

    :raises InvalidMessage: it is none
    """
    if not isinstance(body, dict) or 'members' not in body:
        return base.decode(body, Answer, inside='answer')
    found = base.decode(body, AnswerByHosts, inside='answer')
    try:
        return in_lists(found)
    except IndexError:
        raise exceptions.invalid(
            'answer.members', f'expected places in a list of {len(found.hosts)} hosts'
        ) from None
