"""Algorithms: the contract in ``core``, names in ``registry``; this package knows arrays, and no process."""
