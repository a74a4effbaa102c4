"""`tianji profile`: measures a job's parts, predicts the rates of splits of the cores, recommends one."""
