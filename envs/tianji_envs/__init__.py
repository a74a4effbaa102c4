"""Environments: the contract in ``core``, names in ``registry``; knows no process and no algorithm."""
