"""The simulation: a schedule's actions run against the cost model, which gives a step's seconds and waits."""
