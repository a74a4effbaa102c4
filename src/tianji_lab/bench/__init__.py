"""The paper's communication experiments, and the usual micro-benchmarks, over any transport."""
