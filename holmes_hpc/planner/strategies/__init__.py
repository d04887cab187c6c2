"""The strategies: what each proposes for a task, with an estimate of its step and its memory."""
