"""Fleets: unlike pipelines chosen together, from templates of one pipeline by a knapsack over the kinds of nodes."""
