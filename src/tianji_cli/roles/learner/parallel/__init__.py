"""What several learners of a group, and several groups, add to a learner."""
