"""A NIC kind that came after this version of holmes_hpc."""

from holmes_hpc import extend

extend.add_nic("xdr1600", family="ib", bandwidth_gbps=1600, latency_us=1.0)
