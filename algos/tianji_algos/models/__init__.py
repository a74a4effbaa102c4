"""Networks, with which agents act and which embryos train."""
