"""`tianji bench scaling`: the paper's scaling experiments, trained here and predicted beyond this machine."""
