"""What runs say together: statistics over runs, their curves, and the comparison of any of them."""
