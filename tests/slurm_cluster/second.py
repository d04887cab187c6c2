"""A second cluster beside a running one: its own controller and nodes, known to the same slurmdbd."""

from __future__ import annotations

import time

from tests.slurm_cluster.cluster import CommandFailedError, SlurmCluster

NAME = "west"
NODES = ("ib-2", "roce-2")
"""They change over: their daemons read the second cluster's configuration in /etc/slurm, the head's the first's."""

_CONTROLLER = """\
set -e
base=/run/slurm-cluster; west=$base/west
mkdir -p $west/state $west/log $west/pid $west/spool/ib-2 $west/spool/roce-2
cp -r $base/etc $west/etc
cd $west/etc
sed -i -e 's/^ClusterName=.*/ClusterName=west/' -e "s#$base/\\(state\\|log\\|spool\\|pid\\)#$west/\\1#g" \
  -e '/^NodeName=\\(ib-1\\|roce-1\\) /d' slurm.conf
sed -i -e 's/ib-1,ib-2/ib-2/; s/roce-1,roce-2/roce-2/' slurm.conf topology.conf
sed -i '/^NodeName=\\(ib-1\\|roce-1\\) /d' gres.conf
echo SlurmctldPort=6717 >> slurm.conf
sacctmgr --immediate --quiet add cluster west
SLURM_CONF=$west/etc/slurm.conf slurmctld
"""
_NODE = """\
kill $(cat /run/slurm-cluster/pid/slurmd.{node}.pid)
mount --bind /run/slurm-cluster/west/etc /etc/slurm
while [ -e /run/slurm-cluster/pid/slurmd.{node}.pid ]; do sleep 0.05; done
slurmd -N {node}
"""


def start_second_cluster(slurm: SlurmCluster, timeout_seconds: float = 30.0) -> None:
    """Start the cluster `west` of two of a cluster's four nodes, one of each fabric; it ends with that cluster.

    The cluster has accounting, by which its commands find the other one. Raises CommandFailedError.
    """
    slurm.run(_CONTROLLER)
    for node in NODES:
        slurm.run(f"scontrol update nodename={node} state=down reason={NAME}")
        slurm.run(_NODE.format(node=node), node)
    deadline = time.monotonic() + timeout_seconds
    ask = f"sinfo --clusters={NAME} --noheader --partition=mixed --states=idle --format=%D"
    while (told := slurm.run(ask, check=False).stdout.split()) != ["2"]:
        if time.monotonic() > deadline:
            raise CommandFailedError(f"the second cluster has not two idle nodes but {told}")
        time.sleep(0.2)
