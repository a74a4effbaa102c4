"""Learning in parallel: several learners of a group, and several groups of a job."""
