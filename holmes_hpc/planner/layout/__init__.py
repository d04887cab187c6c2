"""A layout: pipelines, groups and reductions, that is everything of a plan but its schedule and its prediction."""
