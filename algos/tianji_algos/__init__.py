"""Algorithms: the contract in ``core``, names in ``registry``; knows arrays, and no process."""
