"""Push/probe transports: the contract in ``core``, names in ``registry``; knows bytes, and no tensor."""
