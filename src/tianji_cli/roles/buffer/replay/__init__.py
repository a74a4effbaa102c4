"""The replay memory: slots for received fragments, an index of their samples, and samplers."""
