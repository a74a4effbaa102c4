"""`tianji bench scaling`: the paper's scaling experiments, trained here and simulated beyond this machine."""
