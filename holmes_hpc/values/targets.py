"""What stands for a target that does not count."""

NOT_COUNTED = -100
"""A target of which no loss is taken: padding, the first token of another document, words that were not the model's."""
