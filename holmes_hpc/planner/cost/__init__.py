"""The cost model: seconds of compute, collectives and transfers, and bytes of memory, from documented constants."""
