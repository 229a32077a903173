# SPDX-License-Identifier: Apache-2.0
"""Each field of a request is either sent to a zone of another owner, or withheld on purpose.

A field that is added to a request fails here until somebody has chosen.
"""

from gantt.core.messages.request import GroupRef, RequestSpec
from gantt.zones.service.delegation import (
    LOCAL_HOST_FIELDS,
    SENT_GROUP_FIELDS,
    SENT_SPEC_FIELDS,
)

#: Sent in part: what filters of every site read.
SENT_IN_PART = {'group', 'flavor', 'image', 'hints'}
#: The owner of the guest, its history here, and names of this zone; none of them chooses a host
#: of another zone.
WITHHELD = {'project_id', 'user_id', 'move_id', 'ignore_hosts', 'forbidden_aggregates'}
#: Guests and hosts of this zone.
WITHHELD_OF_GROUPS = {'members', 'hosts'}


def test_each_field_is_sent_or_withheld_on_purpose():
    chosen = [*SENT_SPEC_FIELDS, *LOCAL_HOST_FIELDS, *SENT_IN_PART, *WITHHELD]
    assert sorted(chosen) == sorted(RequestSpec.__struct_fields__)
    of_groups = [*SENT_GROUP_FIELDS, *WITHHELD_OF_GROUPS]
    assert sorted(of_groups) == sorted(GroupRef.__struct_fields__)
