"""Small networks and losses in numpy, on a CPU, with derivatives by hand; tests hold them against torch."""
