# SPDX-License-Identifier: Apache-2.0
"""The HTTP application with all capabilities, for whatever serves it."""

from gantt.cmd import policies
from gantt.groups import http as groups
from gantt.http import app, audit, auth, policy
from gantt.http.context import Checks, MetricsSource, RequestsClient
from gantt.http.middleware import Wsgi
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.stores import AllStores
from gantt.zones.http import routes as zones
from gantt.zones.http.answers import AnswersOverZones
from gantt.zones.service.context import NoCalls, ZoneContext

#: Lines of the whole route table.
ROUTES = (*app.ROUTES, *groups.ROUTES, *zones.ROUTES)


def make_app(
    insights: Insights,
    stores: AllStores,
    requests_client: RequestsClient,
    metrics: MetricsSource,
    settings: HttpSettings | None = None,
    checks: Checks | None = None,
    strategy: auth.Strategy = auth.noauth,
    rules: policy.PolicyEnforcer | None = None,
    store_entry: audit.StoreEntry = lambda entry: None,
    *,
    zone_context: ZoneContext | None = None,
    plans: groups.PlansClient | None = None,
) -> Wsgi:
    """Return the WSGI application, see ``gantt.http.app.make_app``.

    :param rules: the policy; None: its defaults in the code
    :param zone_context: other zones, as far as this process calls any; None: no child zones
    :param plans: calls the planner of groups; None: there is none
    """
    context = zone_context or without_zones(insights, stores, metrics)
    return app.make_app(
        insights,
        stores,
        requests_client,
        metrics,
        rules or policies.defaults(),
        settings,
        checks,
        strategy,
        store_entry,
        answers=AnswersOverZones(context, insights, stores.child_claims),
        extensions=(groups.extension(plans), zones.extension(stores, context)),
    )


def without_zones(insights: Insights, stores: AllStores, metrics: MetricsSource) -> ZoneContext:
    """Return what parent zones need, where this process calls no child zone."""
    return ZoneContext(
        stores,
        NoCalls(),
        insights.cache,
        lambda: insights.pipeline,
        insights.settings,
        metrics.count,
    )
