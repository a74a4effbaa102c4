"""The roles of a job: self-looping parts that take turns in their process and never wait for one another."""
