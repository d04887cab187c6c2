"""NCCL's rules over gloo, so that the engine meets on CPUs what it would meet on GPUs.

`rules` says what may happen, `device` decides on each rank which operation starts, `communicator` is the process group
that torch's functions call, `backend` stands where `comm/nccl.py` stands, `report` tells of a deadlock as the cycle of
its operations, and `worlds` trains on it.
"""
