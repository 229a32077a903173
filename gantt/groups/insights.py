# SPDX-License-Identifier: Apache-2.0
"""The part of planned groups in dry runs and replays of the read model."""

from gantt.groups.model import take_reservations
from gantt.groups.service.group_members import GroupMembers
from gantt.insights.read_model import GroupHooks

HOOKS = GroupHooks(GroupMembers, take_reservations)
