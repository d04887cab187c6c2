"""How a plan is played in the wind tunnel: its prices, and how much slower than the cluster this machine keeps up."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.host import host_cores
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner.simulation.timed import operations, timed_prices
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.values import Plan
from holmes_hpc.values.timed import TimedPrices

OPERATION_SECONDS = 0.0014
"""CPU time of a message, sum or gather of one rank over gloo, with the rank's waits, on two cores."""
BUSY_SHARE = 0.12
"""So much of the cores' time may go into that: with more, ranks wake up late when many of them meet."""
MOST_GBPS = 1.5
"""What a small machine moves besides, 10^9 bit/s over all links together."""
MOST_BY_RATES = 4.0
"""Further than so the bytes should be scaled, and not the seconds."""


def tunnel_prices(config: Any, plan: Plan, cluster: ClusterDescription, cores: int | None = None) -> TimedPrices:
    """Return the prices of a plan's waits, with the dilation that `cluster.emulate.dilation` sets or that fits here.

    Raises ConfigurationError where the bytes of the cluster are too many for this machine.
    """
    task, layout = restore(config, plan, cluster=cluster)
    prices = timed_prices(task, layout, cluster.scale, 1.0)
    total = sum(prices.rates.values()) / cluster.scale
    asked = config.cluster.emulate.dilation
    if asked is None and total > MOST_BY_RATES * MOST_GBPS:
        least = math.ceil(total * cluster.scale / MOST_BY_RATES / MOST_GBPS)
        raise ConfigurationError(
            f"cluster.emulate.scale={cluster.scale:g}: the links of this cluster would carry {total:,.0f} Gbit/s, and "
            f"this machine moves about {MOST_GBPS:g}; set cluster.emulate.scale to {least} or more (1000 is usual), or "
            "cluster.emulate.dilation yourself")
    busy = operations(task, layout) * OPERATION_SECONDS / (BUSY_SHARE * (cores or host_cores()))
    needed = max(1.0, total / MOST_GBPS, busy / plan.predicted.step_seconds)
    return dataclasses.replace(prices, dilation=float(asked) if asked else math.ceil(2 * needed) / 2)
