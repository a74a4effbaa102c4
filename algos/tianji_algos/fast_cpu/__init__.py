"""Derivatives found by hand, in numpy, for small networks on a CPU; tests hold them against the losses."""
