"""`tianji profile`: measures the parts of a job, predicts what a split of the cores gives, recommends one."""
