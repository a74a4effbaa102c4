"""Push/probe transports."""
