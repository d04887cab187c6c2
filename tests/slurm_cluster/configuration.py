"""The configuration files of a cluster, the same for Slurm 22.05 and 24.11."""

from __future__ import annotations

from pathlib import Path

from tests.slurm_cluster.settings import HEAD, ClusterSettings, NodeSettings, head_address

CLUSTER_NAME = "testbed"
DATABASE = "slurm_acct_db"
DATABASE_PASSWORD = "testbed"

# No cgroups and no users of its own, several slurmd on one machine, requests for more cores than there are,
# and everything that Slurm waits for by default cut short.
_FIXED = """\
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,bf_hetjob_immediate,bf_hetjob_prio=min,requeue_setup_env_fail
TopologyPlugin=topology/tree
GresTypes=gpu,nic
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
Waittime=0
SlurmctldDebug=info
SlurmdDebug=info
"""


_CGROUPS = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=900
"""
_LIMITS = """\
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
ConstrainDevices=yes
"""


def write_configuration(settings: ClusterSettings, base: Path) -> None:
    """Write every configuration file below `base/etc`; logs and state will lie beside it."""
    etc = base / "etc"
    for folder in (etc, base / "log", base / "state", base / "spool", base / "pid", base / "devices"):
        folder.mkdir(parents=True, exist_ok=True)
    (etc / "slurm.conf").write_text(_slurm(settings, base))
    (etc / "topology.conf").write_text(_topology(settings))
    (etc / "gres.conf").write_text(_gres(settings, base))
    # Named, for in a namespace /sys/fs/cgroup is empty and slurmd refuses to start where it has to look.
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n" + (_LIMITS if settings.cgroups else ""))
    (base / "hosts").write_text(_hosts(settings))
    if settings.accounting:
        path = etc / "slurmdbd.conf"
        path.touch(mode=0o600)
        path.write_text(_slurmdbd(base))


def _slurm(settings: ClusterSettings, base: Path) -> str:
    lines = [f"ClusterName={CLUSTER_NAME}", f"SlurmctldHost={HEAD}({head_address()})", *_fixed(settings),
             f"AuthInfo=cred_expire={settings.credential_seconds}",
             f"KillWait={settings.kill_wait_seconds}",
             f"StateSaveLocation={base}/state", f"SlurmdSpoolDir={base}/spool/%n",
             f"SlurmctldPidFile={base}/pid/slurmctld.pid", f"SlurmdPidFile={base}/pid/slurmd.%n.pid",
             f"SlurmctldLogFile={base}/log/slurmctld.log", f"SlurmdLogFile={base}/log/slurmd.%n.log"]
    if settings.accounting:
        lines += ["AccountingStorageType=accounting_storage/slurmdbd", f"AccountingStorageHost={head_address()}",
                  "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:v100,gres/nic",
                  "AccountingStoreFlags=job_env,job_script,job_comment"]
    lines += [_node(node, settings) for node in settings.nodes]
    lines += _partitions(settings)
    return "\n".join([*lines, *settings.extra]) + "\n"


def _fixed(settings: ClusterSettings) -> list[str]:
    """Return the lines that are alike in all clusters; Slurm complains of a key that is there twice."""
    other = [*_CGROUPS.splitlines(), *settings.extra] if settings.cgroups else settings.extra
    keys = {line.partition("=")[0] for line in other}
    return [line for line in _FIXED.splitlines() if line.partition("=")[0] not in keys] + (
        _CGROUPS.splitlines() if settings.cgroups else [])


def _node(node: NodeSettings, settings: ClusterSettings) -> str:
    return (f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} "
            f"CPUs={settings.cpus_per_node} Boards=1 SocketsPerBoard=1 CoresPerSocket={settings.cpus_per_node} "
            f"ThreadsPerCore=1 RealMemory=4000 "
            f"Gres=gpu:{node.gpu_type}:{settings.gpus_per_node},nic:{node.nic_type}:1 "
            f"{f'Feature={node.features} ' if node.features else ''}Weight={node.weight} State=UNKNOWN")


def _partitions(settings: ClusterSettings) -> list[str]:
    def partition(name: str, nodes: tuple[NodeSettings, ...], rest: str) -> str:
        return f"PartitionName={name} Nodes={_names(nodes)} MaxTime=INFINITE State=UP {rest}"

    # The time of grace belongs to the partition of the job that is preempted.
    ordinary = f"PriorityTier=10 GraceTime={settings.grace_seconds}"
    return [*(partition(family, settings.of_family(family), ordinary)
              for family in ("ib", "roce") if settings.of_family(family)),
            partition("mixed", settings.nodes, f"{ordinary} Default=YES"),
            partition("urgent", settings.nodes, "PriorityTier=100")]


def _topology(settings: ClusterSettings) -> str:
    families = [family for family in ("ib", "roce") if settings.of_family(family)]
    leaves = [f"SwitchName={family}-sw Nodes={_names(settings.of_family(family))}" for family in families]
    core = f"SwitchName=eth-core Switches={','.join(f'{family}-sw' for family in families)}"
    return "\n".join([*leaves, core]) + "\n"


def _gres(settings: ClusterSettings, base: Path) -> str:
    devices = f"{base}/devices/gpu[0-{settings.gpus_per_node - 1}]"
    return "AutoDetect=off\n" + "".join(
        f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={devices}\n"
        f"NodeName={node.name} Name=nic Type={node.nic_type} Count=1\n" for node in settings.nodes)


def _hosts(settings: ClusterSettings) -> str:
    lines = ["127.0.0.1 localhost", f"{head_address()} {HEAD}"]
    for node in settings.nodes:
        lines += [f"{node.address} {node.name}", f"{node.fabric_address} {node.name}-{node.family}"]
    return "\n".join(lines) + "\n"


def _slurmdbd(base: Path) -> str:
    return "\n".join([
        f"DbdHost={HEAD}", f"DbdAddr={head_address()}", "SlurmUser=root", "AuthType=auth/munge",
        "StorageType=accounting_storage/mysql", "StorageHost=localhost", "StorageUser=slurm",
        f"StoragePass={DATABASE_PASSWORD}", f"StorageLoc={DATABASE}", f"LogFile={base}/log/slurmdbd.log",
        f"PidFile={base}/pid/slurmdbd.pid"]) + "\n"


def _names(nodes: tuple[NodeSettings, ...]) -> str:
    return ",".join(node.name for node in nodes)
