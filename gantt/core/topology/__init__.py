# SPDX-License-Identifier: Apache-2.0
"""The placement of a guest inside a host: NUMA cells, cores, pages and devices.

    read (extra specs, image properties → TopologyRequest)
    → find_layout (TopologyRequest, FreeTopology → Layout)
    → FreeTopology.take and FreeTopology.give

One check for the pipeline, the commit and the compute service.  A ``Layout`` names
everything that it takes, so that it can be verified without the request that it was
created for.
"""
