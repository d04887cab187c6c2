"""Process groups, each on its own network, and the collectives and transfers that run over them."""
