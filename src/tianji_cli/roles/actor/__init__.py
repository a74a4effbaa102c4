"""The actor steps environments and pushes what it saw; the evaluator plays whole episodes."""
