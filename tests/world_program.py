"""A main process with two sleeping ranks, for tests that kill its processes: `world_program.py MODE FOLDER`.

It prints its pids as one JSON line when both ranks run, then every event, then {"status": ...}.
"""

import json
import os
import sys
import time
from pathlib import Path

from holmes_hpc.emulation.network import EmulatedInterface, EmulatedNetwork, EmulatedNode
from holmes_hpc.emulation.world import WorldContext, start_world


def network() -> EmulatedNetwork:
    return EmulatedNetwork(tuple(
        EmulatedNode(f"ib/{index}", f"ib-{index}",
                     (EmulatedInterface("eth0", "ethernet", f"10.0.0.{index + 1}", 0.1, "bridge-eth", 1500),))
        for index in range(2)))


def body(folder: Path, context: WorldContext) -> int:
    def rank() -> int:
        context.send({"event": "rank", "pid": os.getpid()})
        time.sleep(120)
        return 0

    pids = {context.fork_rank(number, f"ib-{number}", rank, folder / f"{number}.log"): number
            for number in range(2)}
    context.send({"event": "forked", "pids": {str(pid): number for pid, number in pids.items()}})
    pid, status = context.wait()
    context.send({"event": "ended", "rank": pids[pid], "status": status})
    context.end_ranks(grace_seconds=0)
    return 9


def main() -> int:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    world = start_world(network() if mode == "emulated" else None, lambda context: body(folder, context))
    forked: dict[str, int] = {}
    running = 0
    while not world.events_ended:
        for event in world.events(timeout_seconds=1):
            print(json.dumps(event), flush=True)
            running += event["event"] == "rank"
            forked = event["pids"] if event["event"] == "forked" else forked
            if running == 2 and forked:
                outer = world.outer_pids()
                ranks = {number: outer[int(pid)] for pid, number in forked.items()}
                pids = {"main": os.getpid(), "mid": world.mid_pid, "init": world.init_pid}
                pids |= {f"rank {number}": ranks[number] for number in (0, 1)}
                print(json.dumps({"event": "pids"} | pids), flush=True)
                running = 0
    print(json.dumps({"event": "status", "status": world.wait(10)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
