# SPDX-License-Identifier: Apache-2.0
"""A process dies at any statement that plans a group, takes a place over or gives one back.

Real processes and kill -9, as of ``test_crashes``.  Whatever the moment, a group is there whole or
not at all, each member has one claim, and who was not answered asks another process, which ends
the same request in one way.
"""

import pytest

from tests.builders import live
from tests.nemesis.deaths import at_answers, at_statements, every_death, left_alone
from tests.nemesis.group_scenes import SCENES, GroupScene, GroupsSite

pytestmark = [pytest.mark.rabbit, pytest.mark.timeout(180)]


@pytest.fixture(
    scope='module',
    params=[
        pytest.param('postgresql', marks=pytest.mark.postgresql),
        pytest.param('mysql', marks=[pytest.mark.mysql, pytest.mark.slow]),  # nightly: minutes
    ],
)
def site(request, a_site):
    new_site = GroupsSite(a_site(request.param))
    yield new_site
    new_site.close()


@pytest.mark.parametrize('scene', SCENES)
def test_killed_before_every_write(site, scene):
    """Every other time somebody asks again."""
    life = at_statements(site, of_writes=True)
    assert every_death(site, scene, life, (scene.repeated, left_alone)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize('ending', [GroupScene.repeated, left_alone])
@pytest.mark.parametrize('scene', SCENES)
def test_killed_before_every_statement(site, scene, ending):
    assert every_death(site, scene, at_statements(site), (ending,)) >= 5


@pytest.mark.parametrize('scene', SCENES)
def test_killed_between_commit_and_its_answer(site, scene, closing):
    life = at_answers(site, closing)
    assert every_death(site, scene, life, (scene.repeated, left_alone)) >= 1


@pytest.mark.parametrize('scene', SCENES)
def test_what_is_done_by_half_is_found(site, scene):
    """Each scene sees it; else what is above would pass whatever happened."""
    prepared = scene(site, 0)
    prepared.half()
    with pytest.raises(AssertionError, match=r'half a|a place is gone'):
        prepared.kept()
    tidy(site.store)


def tidy(store):
    """Nothing of it is there for the next scene."""
    for record in store.plans.group_plans(100):
        store.plans.release_plan(record.group_uuid, 'over')
    for claim in live(store):
        store.requests.cancel_request(claim.request_id, 'over')
